"""The rooms of salusd in this process, without systemd and signals. A crash drops all of them and keeps the journal.

Each start has an event loop of its own, so that a crash drops every timer and task too. After each event the engine's
invariants are checked, and after each start the state must be the one that the crashed daemon had.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from nodedaemon.config import load_or_raise
from nodedaemon.core import events
from nodedaemon.core.commands import Command
from nodedaemon.core.state.frozen import freeze
from nodedaemon.core.state.invariants import check
from nodedaemon.core.state.lanes import LaneState
from nodedaemon.core.types import DeviceId, Epoch, LaneId
from nodedaemon.service.assembly import Rooms, StateRoom
from nodedaemon.service.control.configuration import ActiveConfiguration
from nodedaemon.service.devices.discovery import make_devices
from nodedaemon.service.journal.dispatcher import Dispatcher
from nodedaemon.service.node import NodeClock, NodeIdentity
from nodedaemon.wire.listener import open_socket

GATHER_TIMEOUT_S = 0.2


class SalusdRooms:
    """`config` adds lines to salus.conf. The clock can be moved forward with `skip_ns`."""

    def __init__(self, directory: Path, config: str) -> None:
        self.socket = directory / "run" / "s"
        file = directory / "salus.conf"
        file.write_text(
            f"ClusterName=test\nLocalJobs=yes\nAutoDetect=off\nDaemonSocket={self.socket}\nStateDir={directory}/state\n"
            f"ControlSocket={directory}/run/c\nStorageUrl=sqlite:///{directory}/salus.db\n{config}\n"
        )
        self._config = load_or_raise(file)
        self._skipped_ns = 0
        self._epochs: dict[str, Epoch] = {}
        self._errors: list[dict[str, Any]] = []
        self.event_count = 0
        self._is_up = False
        self.start()

    def clock(self) -> int:
        return time.monotonic_ns() + self._skipped_ns

    def skip_ns(self, span_ns: int) -> None:
        self._skipped_ns += span_ns
        self.tick()

    def tick(self) -> None:
        self.do(lambda: [self.dispatcher.submit(events.Ticked(device)) for device in self.drivers])

    @property
    def devices(self) -> list[DeviceId]:
        return list(self.drivers)

    @property
    def dispatcher(self) -> Dispatcher:
        return self.rooms.state.shell.dispatcher

    def start(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(self._on_exception)
        self.wait(self._start())

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # A crash destroys tasks, which the loop of the crashed daemon reports.
        if loop is self.loop and self._is_up:
            self._errors.append(context)

    async def _start(self) -> None:
        self.drivers = make_devices(self._config, "n1")
        configuration = ActiveConfiguration(self._config, None, "n1", self.drivers)
        node = replace(NodeIdentity.of_this_run("n1", "test"), clock=NodeClock(self.clock))
        self.rooms = rooms = Rooms.of(StateRoom.of(configuration, node, self.drivers, 50))
        self.recovered = self._state()
        self.dispatcher.observers.append(self)
        self._listener = open_socket(self.socket, socket.SOCK_SEQPACKET)
        rooms.state.journal.begin(self.dispatcher.snapshot)
        rooms.control.administration.add_devices()
        rooms.state.shell.recorder.start()
        rooms.sessions.recovery.on_gathered = lambda: [
            self.dispatcher.submit(events.Ticked(device)) for device in self.drivers
        ]
        rooms.sessions.recovery.start(GATHER_TIMEOUT_S)
        rooms.control.connections.listen(self._listener)
        self._is_up = True

    def watch(self, event: events.Event, made: list[Command], now_ns: int) -> None:
        self.event_count += 1
        check(self.dispatcher.engine, self._epochs)

    def crash(self) -> None:
        """Drop everything except the files. The next start must restore the same state."""
        before = self._state()
        self._drop()
        self.start()
        assert self.recovered == before, f"a replay of the journal gives another state: {self.recovered} not {before}"

    def close(self) -> None:
        if self._is_up:
            self._drop()

    def _drop(self) -> None:
        self.dispatcher.observers.clear()
        self.dispatcher.executor = None
        self.rooms.state.journal.close()  # what happens from now on is lost, as in a crash
        self._is_up = False
        self.wait(self._stop(self.rooms))
        self.loop.close()

    async def _stop(self, rooms: Rooms) -> None:
        rooms.devices.lanes.stop()
        current = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not current]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.loop.shutdown_default_executor()
        rooms.control.connections.close()
        rooms.sessions.holders.close()
        rooms.devices.readings.close()
        rooms.state.shell.roster.close()
        rooms.state.ledger.spool.close()
        # Not only closed: a program that a thread starts at this moment has the descriptor too.
        fcntl.flock(rooms.state.lock, fcntl.LOCK_UN)
        os.close(rooms.state.lock)
        for driver in self.drivers.values():
            driver.close()

    def wait(self, work: Awaitable[Any]) -> Any:
        result = self.loop.run_until_complete(asyncio.ensure_future(work, loop=self.loop))
        self.check()
        return result

    def do(self, work: Callable[[], Any]) -> Any:
        """Call it in the event loop, as the daemon's own parts are called."""

        async def call() -> Any:
            return work()

        return self.wait(call())

    def wait_s(self, seconds: float) -> None:
        """Let the daemon work for that long."""
        self.wait(asyncio.sleep(seconds))

    def upkeep(self) -> None:
        """What the daemon does from time to time."""
        rooms = self.rooms
        self.wait(rooms.devices.readings.sample())
        self.do(rooms.sessions.holders.look_at_processes)
        self.do(rooms.devices.lanes.watch)
        self.wait(rooms.jobs.local_jobs.end_finished())

    def _state(self) -> tuple[Any, bytes]:
        return freeze(self.dispatcher.engine), self.dispatcher.state.encode()

    def check(self) -> None:
        """The shell and the engine agree, and no part has failed."""
        if not self._is_up:
            return
        assert not self._errors, self._errors
        rooms = self.rooms
        engine, state = self.dispatcher.engine, self.dispatcher.state
        devices = engine.devices()
        assert set(state.sessions) == {session for device in devices for session in device.sessions}
        is_settled = not rooms.sessions.recovery.is_gathering
        lanes = {lane.id: lane for device in devices for lane in device.lanes.values()}
        memories = self.lane_memories()
        assert set(memories) <= set(lanes), "memory of a lane that the engine does not know"
        for lane in lanes.values():
            if lane.state is LaneState.PARKED:
                assert lane.id not in memories, f"lane {lane.id} is parked and has memory"
            elif lane.state is LaneState.OPEN and is_settled:
                assert memories.get(lane.id) == lane.held_bytes, f"lane {lane.id} has not the memory that is counted"

    def lane_memories(self) -> dict[LaneId, int]:
        """The bytes of each lane for which the daemon has memory."""
        return {lane: held.memory.size_bytes for lane, held in self.rooms.devices.lanes._held.items()}

    def is_empty(self) -> bool:
        """Whether nothing is left of any session."""
        (device,) = self.dispatcher.engine.devices()
        is_device_empty = not device.sessions and not device.lanes and not device.persistent_bytes
        return is_device_empty and not device.held_bytes and not self.lane_memories()
