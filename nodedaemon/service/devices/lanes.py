"""Lane memory: allocates it, sends it to sessions, takes it back and checks that it is free.

A lane is released only when no process that was ever sent its memory maps it or keeps its descriptor. The daemon looks
at /proc for that; a session's claim is not enough. A process that still maps the lane at the deadline is ended. The
pages are then freed, and the memory stays under watch while any of those processes lives: if bytes grow back, a process
used memory that it had returned, and it is ended. A stopped process can neither use the lane nor unmap it, so its lane
is freed under it and watched.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nodedaemon.core import commands, events
from nodedaemon.core.errors import OperatingError, PeerError
from nodedaemon.core.lanes import LaneState
from nodedaemon.core.types import DeviceId, Epoch, LaneId, SessionId
from nodedaemon.drivers.device import Device, LaneMemory
from nodedaemon.drivers.process import Process, ProcessState
from nodedaemon.service.control.configuration import ActiveConfiguration
from nodedaemon.service.journal.dispatcher import Dispatcher
from nodedaemon.service.journal.state import MappedNote, MemoryNote, SessionFacts
from nodedaemon.service.sessions.roster import LiveSession, Roster
from nodedaemon.wire.messages import Map, Unmap, Unmapped

WATCHED_MAX = 256
#: Time between two looks at a release that waits for a process.
RECHECK_INTERVAL_S = 0.02


@dataclass(slots=True, eq=False)
class Held:
    """Memory of a lane since it was opened at one epoch, and every process that was sent it."""

    device: Device
    memory: LaneMemory
    epoch: int
    processes: dict[SessionId, Process] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Release:
    """A release under way."""

    lane: LaneId
    epoch: Epoch
    started_ns: int
    asked: set[SessionId] = field(default_factory=set)


class LaneAllocator:
    def __init__(
        self,
        dispatcher: Dispatcher,
        roster: Roster,
        devices: Mapping[DeviceId, Device],
        configuration: ActiveConfiguration,
        log: Any,
    ) -> None:
        self._dispatcher = dispatcher
        self._roster = roster
        self._devices = devices
        self._configuration = configuration
        self._log = log
        self._held: dict[LaneId, Held] = {}
        self._releases: dict[LaneId, Release] = {}
        self._watched: list[Held] = []
        self._timer: asyncio.TimerHandle | None = None

    def open(self, command: commands.OpenLane) -> None:
        held = self._held.get(command.lane)
        if held is not None and held.epoch == command.epoch:
            self._dispatcher.submit(events.LaneOpened(command.lane, command.epoch))
            return
        device = self._devices[command.device]
        try:
            memory = device.open_lane(command.bytes)
        except OperatingError as error:
            self._log.error("lane not opened", device=command.device, lane=command.lane, why=str(error))
            self._dispatcher.submit(events.LaneFailed(command.lane, command.epoch, str(error)))
            return
        self._held[command.lane] = Held(device, memory, command.epoch)
        self._dispatcher.note(MemoryNote(command.lane, command.epoch, memory.identity))
        self._dispatcher.submit(events.LaneOpened(command.lane, command.epoch))

    def hand_over(self, facts: SessionFacts, live: LiveSession, lane: LaneId) -> bool:
        """Send the session the lane's memory unless it maps it already; False if that is not possible."""
        held = self._held.get(lane)
        if held is None or live.process is None:
            return False
        if facts.mapped_lane == lane and facts.mapped_epoch == held.epoch:
            held.processes.setdefault(facts.session, live.process)
            return True
        if live.connection is None:
            return False
        held.processes[facts.session] = live.process
        self._dispatcher.note(MappedNote(facts.session, lane, held.epoch))
        size_bytes = held.memory.size_bytes
        message = Map(lane, held.epoch, size_bytes, min(facts.view.ephemeral_bytes, size_bytes))
        live.connection.send(message, [held.memory.fd])
        return True

    def adopt(self, facts: SessionFacts, live: LiveSession, lane: LaneId, epoch: int, fd: int) -> None:
        """After a restart: take back the lane that a session maps. Owns `fd`; raises `PeerError` if it is not ours."""
        known, note = self._dispatcher.engine.lane(lane), self._dispatcher.state.memories.get(lane)
        held = self._held.get(lane)
        if known is None or note is None or note.epoch != epoch or live.process is None:
            os.close(fd)
            raise PeerError(f"adopt lane: lane {lane} at epoch {epoch}: not one of ours any more")
        device = self._devices.get(known.device)
        if device is None:
            os.close(fd)
            raise PeerError(f"adopt lane: device {known.device}: not configured any more")
        memory = device.adopt_lane(fd, note.identity, known.held_bytes)
        if held is None:
            held = self._held[lane] = Held(device, memory, epoch)
        held.processes[facts.session] = live.process
        if facts.mapped_lane != lane or facts.mapped_epoch != epoch:
            self._dispatcher.note(MappedNote(facts.session, lane, epoch))

    def remake(self, lane: LaneId) -> None:
        """After a restart: if no session returned the lane's memory, allocate it again under the same epoch."""
        known = self._dispatcher.engine.lane(lane)
        if known is None or lane in self._held or known.state is not LaneState.OPEN:
            return
        self.open(commands.OpenLane(lane, known.device, known.domain, known.held_bytes, known.epoch))

    def release(self, lane: LaneId) -> None:
        """Start to take the lane's memory back; the engine gets `LaneReleased` once it is free."""
        known = self._dispatcher.engine.lane(lane)
        assert known is not None
        epoch = known.epoch
        if lane not in self._held:
            self._dispatcher.submit(events.LaneReleased(lane, epoch))
            return
        self._releases[lane] = Release(lane, epoch, self._dispatcher.clock())
        self._advance(self._releases[lane])

    def on_unmapped(self, _live: LiveSession, _facts: SessionFacts, message: Unmapped) -> None:
        """A session reports that it has unmapped the lane; check that in /proc."""
        release = self._releases.get(LaneId(message.lane))
        if release is not None:
            self._advance(release)

    def resume(self, session: SessionId) -> None:
        """The session is connected again: repeat the requests that it missed."""
        for release in list(self._releases.values()):
            release.asked.discard(session)
        self.recheck()

    def is_mapped_by(self, facts: SessionFacts, live: LiveSession) -> bool:
        """Whether the session's process maps the lane that it was sent; cheap if it was never sent one."""
        if facts.mapped_lane is None or live.process is None:
            return False
        held = self._held.get(facts.mapped_lane)
        return held is not None and held.device.is_mapped(held.memory, live.process.pid)

    def recheck(self) -> None:
        """Look at every release under way: a process died or stopped, or some time has passed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for release in list(self._releases.values()):
            self._advance(release)

    def watch(self) -> None:
        """Check released memory: if bytes grow back, free them and end the processes that could have used it."""
        for held in list(self._watched):
            _forget_dead(held)
            if not held.processes:
                held.device.close_lane(held.memory)
                self._watched.remove(held)
                continue
            if held.device.held_bytes(held.memory) == 0:
                continue
            held.device.wipe_lane(held.memory)
            self._end_all(held, "it used lane memory that it had returned")

    def forget(self, session: SessionId) -> None:
        """The session is over and its process with it."""
        for held in [*self._held.values(), *self._watched]:
            held.processes.pop(session, None)

    def close(self, lane: LaneId) -> None:
        held = self._held.pop(lane, None)
        self._releases.pop(lane, None)
        if held is not None:
            self._put_away(held)

    def held_bytes(self, lane: LaneId) -> int | None:
        """Bytes that the lane really holds now; None if it has no memory."""
        held = self._held.get(lane)
        return None if held is None else held.device.held_bytes(held.memory)

    def _advance(self, release: Release) -> None:
        held = self._held[release.lane]
        _forget_dead(held)
        lingering = [session for session in list(held.processes) if self._lingers(held, session, release)]
        if not lingering:
            self._finish(release, held)
            return
        for session in lingering:
            self._ask(release, held, session)
        if self._dispatcher.clock() - release.started_ns > self._configuration.settings.lanes.unmap_timeout_ns:
            self._end_all(held, "it did not unmap a lane in time", only=lingering)
        self._recheck_soon()

    def _recheck_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(RECHECK_INTERVAL_S, self.recheck)

    def _lingers(self, held: Held, session: SessionId, release: Release) -> bool:
        process = held.processes[session]
        facts = self._dispatcher.state.sessions.get(session)
        # A session that maps the lane by right is asked to unmap it first; /proc is searched only after that.
        is_member = facts is not None and facts.mapped_lane == release.lane and facts.mapped_epoch == held.epoch
        is_asked = session in release.asked
        if process.state() is ProcessState.STOPPED and (facts is None or facts.view.epoch is None):
            return False
        if is_member and not is_asked:
            return True
        if held.device.is_mapped(held.memory, process.pid):
            return True
        if is_member:
            self._dispatcher.note(MappedNote(session, release.lane, 0))
        return False

    def _ask(self, release: Release, held: Held, session: SessionId) -> None:
        live = self._roster.get(session)
        if session in release.asked or live is None:
            return
        release.asked.add(session)
        if live.connection is not None:
            live.connection.send(Unmap(release.lane, held.epoch))

    def _finish(self, release: Release, held: Held) -> None:
        remaining_bytes = held.device.wipe_lane(held.memory)
        if remaining_bytes:
            self._recheck_soon()
            return
        del self._releases[release.lane]
        del self._held[release.lane]
        self._put_away(held)
        self._dispatcher.submit(events.LaneReleased(release.lane, release.epoch))

    def _put_away(self, held: Held) -> None:
        """Watch memory that a process could still use; close the rest."""
        _forget_dead(held)
        if held.processes and held.device.capabilities.frees_mapped_lanes and len(self._watched) < WATCHED_MAX:
            self._watched.append(held)
        else:
            held.device.close_lane(held.memory)

    def _end_all(self, held: Held, why: str, only: list[SessionId] | None = None) -> None:
        for session in only if only is not None else list(held.processes):
            self._dispatcher.carry_out(commands.EndSession(session, why))


def _forget_dead(held: Held) -> None:
    for session, process in list(held.processes.items()):
        if process.pidfd < 0 or process.state() is ProcessState.GONE:
            del held.processes[session]
