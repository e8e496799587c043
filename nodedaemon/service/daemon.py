"""salusd: starts and stops the parts that `assembly` has created. One daemon runs per node.

On start it locks the state directory, replays the journal, adds the devices, waits for earlier sessions to reconnect,
and then serves. On stop it closes the sockets. The jobs continue, and reconnect after the next start. A failed
assertion in the core ends the daemon. The journal stays, and systemd starts the daemon again.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodedaemon.config import Config
from nodedaemon.core import events
from nodedaemon.service.assembly import Rooms, StateRoom
from nodedaemon.service.control.configuration import ActiveConfiguration
from nodedaemon.service.devices.discovery import make_devices
from nodedaemon.service.jobs.missed_hooks import MissedHooks
from nodedaemon.service.jobs.orphan_jobs import OrphanJobs
from nodedaemon.service.jobs.suspensions import Suspensions
from nodedaemon.service.jobs.time_limits import TimeLimits
from nodedaemon.service.journal.dispatcher import DIGEST_INTERVAL_COUNT
from nodedaemon.service.node import NodeIdentity
from nodedaemon.service.paths import raise_descriptor_limit
from nodedaemon.service.periodic import DaemonUpkeep, IdleExit, repeat
from nodedaemon.service.sessions.recovery import GATHER_TIMEOUT_S
from nodedaemon.service.tasks import BackgroundTasks
from nodedaemon.wire.listener import open_socket
from nodedaemon.wire.logs import log


@dataclass(frozen=True)
class DaemonOptions:
    """Options of the command line."""

    config_file: Path | None
    node: str
    exit_idle_s: float = 0.0
    digest_interval_count: int = DIGEST_INTERVAL_COUNT
    gather_timeout_s: float = GATHER_TIMEOUT_S


class SalusDaemon:
    """Starts the parts, which `assembly` creates, and stops them in the opposite order."""

    def __init__(self, options: DaemonOptions, config: Config) -> None:
        self._options = options
        self._drivers = make_devices(config, options.node)
        self._configuration = ActiveConfiguration(config, options.config_file, options.node, self._drivers)
        self._stop = asyncio.Event()
        self._tasks = BackgroundTasks()
        self._fatal: BaseException | None = None

    async def run(self) -> int:
        """Serve until a signal; returns the exit status of the program."""
        raise_descriptor_limit()
        # The driver tests with a file lease whether a lane is shared. If a process opens the lane at that moment, the
        # kernel sends SIGIO, which by default ends the daemon.
        signal.signal(signal.SIGIO, lambda *_: None)
        asyncio.get_running_loop().set_exception_handler(self._on_exception)
        node = NodeIdentity.of_this_run(self._options.node, self._configuration.settings.cluster.name)
        rooms = Rooms.of(StateRoom.of(self._configuration, node, self._drivers, self._options.digest_interval_count))
        notifier = rooms.state.notifier
        async with contextlib.AsyncExitStack() as parts:
            await self._start(rooms, parts)
            notifier.ready(f"{len(self._drivers)} devices")
            log.info(
                "salusd is up", node=node.name, devices=len(self._drivers), pid=os.getpid(),
                socket=self._configuration.settings.daemon.socket,
            )  # fmt: skip
            await self._stop.wait()
            notifier.stopping()
            log.info("salusd is stopping; jobs continue under their leases")
        if self._fatal is not None:
            raise self._fatal
        return 0

    async def _start(self, rooms: Rooms, parts: contextlib.AsyncExitStack) -> None:
        state, devices, sessions, control = rooms.state, rooms.devices, rooms.sessions, rooms.control
        daemon, readings = self._configuration.settings.daemon, self._configuration.settings.readings
        session_listener = _listen(parts, Path(daemon.socket), socket.SOCK_SEQPACKET)
        control_listener = _listen(parts, Path(daemon.control_socket), socket.SOCK_STREAM)
        parts.callback(state.shell.roster.close)
        state.journal.begin(state.shell.dispatcher.snapshot)
        parts.callback(self._end_journal, state)
        control.administration.add_devices()
        parts.push_async_callback(state.ledger.close)
        state.shell.recorder.start()
        parts.callback(self._end_records, state)
        parts.callback(devices.readings.close)
        parts.callback(sessions.holders.close)
        sessions.recovery.on_gathered = functools.partial(self._on_gathered, rooms)
        sessions.recovery.start(self._options.gather_timeout_s)
        control.connections.listen(session_listener)
        parts.callback(control.connections.close)
        await control.metrics.open(readings.metrics_address, readings.metrics_port)
        parts.callback(control.metrics.close)
        await control.control.listen(control_listener)
        parts.callback(control.control.close)
        parts.callback(devices.lanes.stop)
        for owner in (control.control, rooms.frames.greeting, rooms.frames.strays, sessions.losses, devices.lanes):
            parts.push_async_callback(owner.tasks.close)
        parts.push_async_callback(self._tasks.close)
        self._start_tasks(rooms)
        parts.callback(sessions.recovery.stop)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, control.administration.reload_by_signal)

    def _start_tasks(self, rooms: Rooms) -> None:
        configuration, shell, jobs, holders = self._configuration, rooms.state.shell, rooms.jobs, rooms.sessions.holders
        missed = MissedHooks(jobs.files, jobs.registry, jobs.slurm_jobs)
        orphans = OrphanJobs(shell, jobs.slurm_jobs, holders)
        upkeep = DaemonUpkeep(rooms.state.notifier, shell.dispatcher, shell.recorder)
        idle = IdleExit(self._options.exit_idle_s, shell.dispatcher, self._stop)

        async def compare_jobs(*actions: Any) -> None:
            await rooms.sessions.recovery.wait_gathered()
            await repeat(configuration.reconcile_interval_s, *actions)

        for work in (
            rooms.state.ledger.run(),
            repeat(
                configuration.reading_interval_s,
                rooms.devices.readings.sample,
                holders.look_at_processes,
                rooms.devices.lanes.watch,
                jobs.local_jobs.end_finished,
            ),
            repeat(configuration.usage_interval_s, shell.recorder.close_interval, is_delayed=True),
            repeat(upkeep.interval_s, upkeep.run, rooms.devices.mps.stop_unused),
            repeat(idle.interval_s, idle.run),
            compare_jobs(missed.compare),
            compare_jobs(orphans.compare, TimeLimits(shell).extend, Suspensions(shell).compare),
        ):
            self._tasks.start(work)

    def _end_records(self, state: StateRoom) -> None:
        if self._fatal is None:
            state.shell.recorder.stop()

    def _end_journal(self, state: StateRoom) -> None:
        if self._fatal is None:
            state.journal.end()
        else:
            state.journal.close()

    def _on_exception(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        log.error("unexpected error", what=context.get("message"), exc_info=error)
        if isinstance(error, AssertionError):
            # A broken invariant: this process cannot trust its own state any more.
            self._fatal = error
            self._stop.set()

    def _on_gathered(self, rooms: Rooms) -> None:
        for device in self._drivers:
            rooms.state.shell.dispatcher.submit(events.Ticked(device))
        rooms.sessions.holders.check_soon()
        if rooms.sessions.recovery.adopted_count:
            log.info("sessions reconnected", count=rooms.sessions.recovery.adopted_count)


def _listen(parts: contextlib.AsyncExitStack, path: Path, kind: socket.SocketKind) -> socket.socket:
    listener = open_socket(path, kind)
    parts.callback(path.unlink, missing_ok=True)
    return listener
