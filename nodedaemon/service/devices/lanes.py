"""Lane memory: allocates it, sends it to sessions, takes it back and checks that it is free.

A lane is released only when no process, with or without a session, maps its memory or keeps its descriptor. A report of
the session is not enough: the device or /proc must show it (`lane_holders`). A session that still holds the lane at
the deadline is ended. The pages are then freed. A stopped process can neither use the lane nor unmap it, so the pages
are freed while it still maps them. The lane is then watched for as long as any process has it: if it holds bytes again,
a process used memory that it had returned, and that process is ended.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection
from dataclasses import dataclass, field

from nodedaemon.core import commands, events
from nodedaemon.core.errors import OperatingError, PeerError
from nodedaemon.core.state.lanes import LaneState
from nodedaemon.core.types import Epoch, LaneId, SessionId
from nodedaemon.drivers.process import ProcessState
from nodedaemon.service.devices.lane_holders import Held, LaneHolders, UnattachedProcess
from nodedaemon.service.journal.state import MappedNote, MemoryNote, SessionFacts
from nodedaemon.service.sessions.roster import LiveSession
from nodedaemon.service.shell import Shell
from nodedaemon.service.tasks import BackgroundTasks
from nodedaemon.wire.logs import log
from nodedaemon.wire.messages import Map, Unmap, Unmapped

WATCHED_MAX = 256
#: Time between two checks of a release that waits for a process.
RECHECK_INTERVAL_S = 0.02
#: A search of the whole node starts this long after a release, and is repeated no sooner.
SEARCH_INTERVAL_NS = 250_000_000


@dataclass(slots=True, eq=False)
class Release:
    """A release under way."""

    lane: LaneId
    epoch: Epoch
    started_ns: int
    asked: set[SessionId] = field(default_factory=set)
    #: A check of processes is under way; its result continues the release.
    is_looking: bool = False
    searched_ns: int = 0


class LaneAllocator:
    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._dispatcher, self._roster = shell.dispatcher, shell.roster
        self._held: dict[LaneId, Held] = {}
        self._releases: dict[LaneId, Release] = {}
        self._watched: list[Held] = []
        self._timer: asyncio.TimerHandle | None = None
        self._holders = LaneHolders(shell.recorder)
        self.tasks = BackgroundTasks()

    def open(self, command: commands.OpenLane) -> None:
        held = self._held.get(command.lane)
        if held is not None and held.epoch == command.epoch:
            self._dispatcher.submit(events.LaneOpened(command.lane, command.epoch))
            return
        device = self._shell.devices[command.device]
        try:
            memory = device.open_lane(command.bytes)
        except OperatingError as error:
            log.error("lane not opened", device=command.device, lane=command.lane, why=str(error))
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
        held.uids.add(facts.uid)
        self._dispatcher.note(MappedNote(facts.session, lane, held.epoch))
        size_bytes = held.memory.size_bytes
        message = Map(lane, held.epoch, size_bytes, min(facts.view.ephemeral_bytes, size_bytes))
        fd = held.device.share_lane(held.memory)
        try:
            live.connection.send(message, [fd])
        finally:
            os.close(fd)
        return True

    def adopt(self, facts: SessionFacts, live: LiveSession, lane: LaneId, epoch: int, fd: int) -> None:
        """After a restart: take back the lane that a session maps. Raises `PeerError` if `fd` is not that lane."""
        view, note = self._dispatcher.engine.lane(lane), self._dispatcher.state.memories.get(lane)
        held = self._held.get(lane)
        if view is None or note is None or note.epoch != epoch or live.process is None:
            raise PeerError(f"adopt lane: lane {lane} at epoch {epoch}: this daemon no longer has it")
        device = self._shell.devices.get(view.device)
        if device is None:
            raise PeerError(f"adopt lane: device {view.device}: no longer configured")
        memory = device.adopt_lane(fd, note.identity, view.held_bytes)
        if held is None:
            held = self._held[lane] = Held(device, memory, epoch)
        held.processes[facts.session] = live.process
        held.uids.add(facts.uid)
        if facts.mapped_lane != lane or facts.mapped_epoch != epoch:
            self._dispatcher.note(MappedNote(facts.session, lane, epoch))

    def reallocate(self, lane: LaneId) -> None:
        """After a restart: if no session brought the lane's memory back, allocate it again under the same epoch."""
        view = self._dispatcher.engine.lane(lane)
        if view is None or lane in self._held or view.state is not LaneState.OPEN:
            return
        self.open(commands.OpenLane(lane, view.device, view.domain, view.held_bytes, view.epoch))

    def release(self, lane: LaneId) -> None:
        """Start to take the lane's memory back; the engine gets `LaneReleased` once it is free."""
        view = self._dispatcher.engine.lane(lane)
        assert view is not None
        epoch = view.epoch
        if lane not in self._held:
            self._dispatcher.submit(events.LaneReleased(lane, epoch))
            return
        self._releases[lane] = Release(lane, epoch, self._dispatcher.clock())
        self._advance(self._releases[lane])

    def on_unmapped(self, _live: LiveSession, _facts: SessionFacts, message: Unmapped) -> None:
        """A session reports that it has unmapped the lane; check that."""
        release = self._releases.get(LaneId(message.lane))
        if release is not None:
            self._advance(release)

    def resume(self, session: SessionId) -> None:
        """The session is connected again: repeat the requests that it missed."""
        for release in list(self._releases.values()):
            release.asked.discard(session)
        self.recheck()

    async def is_held_by(self, facts: SessionFacts, live: LiveSession) -> bool:
        """Whether the session's process holds the lane that it was sent; cheap if it was never sent one."""
        if facts.mapped_lane is None or live.process is None:
            return False
        held = self._held.get(facts.mapped_lane)
        if held is None or held.device.is_shared(held.memory) is False:
            return False
        return bool(await self._holders.among(held, [live.process.pid]))

    def unattached(self, lane: LaneId) -> tuple[UnattachedProcess, ...]:
        """Processes without a session that keep the memory of a lane whose release waits for them."""
        held = self._held.get(lane)
        return held.unattached if held is not None else ()

    def recheck(self) -> None:
        """Check every release under way: a process died or stopped, or some time has passed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for release in list(self._releases.values()):
            self._advance(release)

    def watch(self) -> None:
        """Check released memory: if it holds bytes again, free them and end the processes that could have used it."""
        for held in list(self._watched):
            held.forget_dead()
            is_shared = held.device.is_shared(held.memory)
            if is_shared is False or (is_shared is None and not held.processes):
                held.device.close_lane(held.memory)
                self._watched.remove(held)
                continue
            if held.device.held_bytes(held.memory) == 0:
                continue
            held.device.wipe_lane(held.memory)
            self._end_all(held, "it used lane memory that it had returned")
            self.tasks.start(self._end_strangers(held))

    def forget(self, session: SessionId) -> None:
        """The session and its process have ended."""
        for held in [*self._held.values(), *self._watched]:
            held.processes.pop(session, None)

    def close(self, lane: LaneId) -> None:
        held = self._held.pop(lane, None)
        self._releases.pop(lane, None)
        if held is not None:
            self._watch_or_close(held)

    def stop(self) -> None:
        self._holders.close()

    def held_bytes(self, lane: LaneId) -> int | None:
        """Bytes that the lane actually holds now; None if it has no memory."""
        held = self._held.get(lane)
        return None if held is None else held.device.held_bytes(held.memory)

    def _advance(self, release: Release, found: Collection[int] | None = None) -> None:
        """Continue a release. `found` names the processes of sessions that hold the lane, if they were just checked.

        First, every session that was sent the lane is asked to unmap it. Who holds it matters only after that.
        """
        held = self._held[release.lane]
        held.forget_dead()
        unasked = [session for session in held.processes if self._must_ask(held, session, release)]
        if unasked:
            for session in unasked:
                self._ask(release, held, session)
            self._recheck_soon()
        elif held.device.is_shared(held.memory) is False:
            self._note_unmapped(release, held, ())
            self._finish(release, held)
        elif found is None:
            self._check(release, held)
        else:
            self._note_unmapped(release, held, found)
            self._settle(release, held, found)

    def _settle(self, release: Release, held: Held, found: Collection[int]) -> None:
        holding = [session for session, process in held.processes.items() if process.pid in found]
        lingering = [session for session in holding if not self._is_excused(held, session)]
        if not lingering:
            self._finish(release, held)
            return
        for session in lingering:
            self._ask(release, held, session)
        if self._is_late(release):
            self._end_all(held, "it did not unmap a lane in time", only=lingering)
        self._recheck_soon()

    def _check(self, release: Release, held: Held) -> None:
        async def work() -> None:
            try:
                found = await self._holders.among(held, [process.pid for process in held.processes.values()])
            finally:
                release.is_looking = False
            if self._releases.get(release.lane) is release:
                self._advance(release, found)

        if not release.is_looking:
            release.is_looking = True
            self.tasks.start(work())

    def _search(self, release: Release, held: Held) -> None:
        """The lane is not free although no session has to unmap it any more: check all processes of the node."""

        async def work() -> None:
            try:
                found = await self._holders.search(held, self._known_pids(held))
                is_late = self._is_late(release)
                if is_late:
                    await self._holders.report_and_end(held)
            finally:
                release.is_looking = False
                release.searched_ns = self._dispatcher.clock()
            if self._releases.get(release.lane) is not release:
                return
            unread = [session for session in held.processes if self._has_unread(session)]
            has_lane = [one for one, process in held.processes.items() if process.pid in found or one in unread]
            late = [session for session in has_lane if not self._is_excused(held, session)]
            if has_lane and not late and not held.unattached and held.device.wipe_lane(held.memory) == 0:
                self._complete(release, held)
                return
            if is_late:
                self._end_all(held, "it did not unmap a lane in time", only=late)
            if is_late and not has_lane and not held.unattached:
                self._holders.report_hidden(held)
            self._recheck_soon()

        last_ns = max(release.started_ns, release.searched_ns)
        if release.is_looking or self._dispatcher.clock() - last_ns < SEARCH_INTERVAL_NS:
            self._recheck_soon()
            return
        release.is_looking = True
        self.tasks.start(work())

    async def _end_strangers(self, held: Held) -> None:
        await self._holders.search(held, self._known_pids(held))
        await self._holders.report_and_end(held)

    def _known_pids(self, held: Held) -> set[int]:
        """Processes that were sent the lane.

        If the device knows only suspects, also the processes of all other sessions: they would be suspects by mistake.
        """
        pids = {process.pid for process in held.processes.values()}
        if not held.device.capabilities.names_holders:
            pids |= {facts.process.pid for facts in self._dispatcher.state.sessions.values()}
        return pids

    def _has_unread(self, session: SessionId) -> bool:
        """Whether the session has not read all frames: the lane may be in one of them."""
        live = self._roster.get(session)
        return live is not None and live.connection is not None and live.connection.has_unread()

    def _is_late(self, release: Release) -> bool:
        waited_ns = self._dispatcher.clock() - release.started_ns
        return waited_ns > self._shell.configuration.settings.lanes.unmap_timeout_ns

    def _recheck_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(RECHECK_INTERVAL_S, self.recheck)

    def _is_member(self, held: Held, session: SessionId, release: Release) -> bool:
        facts = self._dispatcher.state.sessions.get(session)
        return facts is not None and facts.mapped_lane == release.lane and facts.mapped_epoch == held.epoch

    def _must_ask(self, held: Held, session: SessionId, release: Release) -> bool:
        is_asked = session in release.asked or not self._is_member(held, session, release)
        return not is_asked and not self._is_excused(held, session)

    def _is_excused(self, held: Held, session: SessionId) -> bool:
        """A stopped process without a grant need not unmap the lane, if the device can free memory that is mapped.

        On other devices only a job that Slurm suspended is excused: it did not stop itself.
        """
        facts = self._dispatcher.state.sessions.get(session)
        is_granted = facts is not None and facts.view.epoch is not None
        is_suspended = facts is not None and facts.view.is_suspended
        may_stay = held.device.capabilities.frees_mapped_lanes or is_suspended
        return may_stay and not is_granted and held.processes[session].state() is ProcessState.STOPPED

    def _note_unmapped(self, release: Release, held: Held, found: Collection[int]) -> None:
        for session, process in held.processes.items():
            if process.pid not in found and self._is_member(held, session, release):
                self._dispatcher.note(MappedNote(session, release.lane, 0))

    def _ask(self, release: Release, held: Held, session: SessionId) -> None:
        live = self._roster.get(session)
        if session in release.asked or live is None:
            return
        release.asked.add(session)
        if live.connection is not None:
            live.connection.send(Unmap(release.lane, held.epoch))

    def _finish(self, release: Release, held: Held) -> None:
        """Free the memory. The release is complete unless a process still holds it."""
        if held.device.wipe_lane(held.memory):
            # On a GPU, memory takes a moment to become free.
            if self._is_late(release):
                self._search(release, held)
            else:
                self._recheck_soon()
        elif held.device.is_shared(held.memory):
            self._search(release, held)
        else:
            self._complete(release, held)

    def _complete(self, release: Release, held: Held) -> None:
        del self._releases[release.lane]
        del self._held[release.lane]
        self._watch_or_close(held)
        self._dispatcher.submit(events.LaneReleased(release.lane, release.epoch))

    def _watch_or_close(self, held: Held) -> None:
        """Watch memory that a process could still use; close the rest."""
        held.forget_dead()
        self._holders.forget(held)
        is_shared = held.device.is_shared(held.memory)
        is_usable = bool(held.processes) if is_shared is None else is_shared
        if is_usable and held.device.capabilities.frees_mapped_lanes and len(self._watched) < WATCHED_MAX:
            self._watched.append(held)
        else:
            held.device.close_lane(held.memory)

    def _end_all(self, held: Held, why: str, only: list[SessionId] | None = None) -> None:
        for session in only if only is not None else list(held.processes):
            self._dispatcher.carry_out(commands.EndSession(session, why))
