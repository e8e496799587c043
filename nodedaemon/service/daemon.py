"""salusd: puts the parts together, runs them and stops them. One daemon runs per node.

Start: lock the state directory, replay the journal, add the devices, take the old sessions back, then serve. Stop: the
sockets close and the jobs continue; the next start takes them back. A failed assertion of the core ends the daemon: the
journal stays, and systemd restarts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from nodedaemon.config import Config
from nodedaemon.core import events
from nodedaemon.service.control.administration import Administration
from nodedaemon.service.control.configuration import ActiveConfiguration
from nodedaemon.service.control.control_socket import ControlSocket
from nodedaemon.service.control.metrics import EventMetrics, MetricsPage, NodeCollector
from nodedaemon.service.control.requests import AdminRequests, HookRequests, Requests, RunRequests, ViewRequests
from nodedaemon.service.control.status import DaemonView, StatusView
from nodedaemon.service.control.systemd import Notifier
from nodedaemon.service.control.why import WhyView
from nodedaemon.service.devices.directory import DeviceDirectory
from nodedaemon.service.devices.discovery import make_devices
from nodedaemon.service.devices.holders import HolderWatch
from nodedaemon.service.devices.lanes import LaneAllocator
from nodedaemon.service.devices.launch_gate import LaunchGate
from nodedaemon.service.devices.memory_limits import MemoryLimits
from nodedaemon.service.devices.mps import MpsServers
from nodedaemon.service.devices.readings import DeviceReadings
from nodedaemon.service.jobs.environment import JobEnvironment
from nodedaemon.service.jobs.identity import JobFinder
from nodedaemon.service.jobs.job_sessions import JobSessions
from nodedaemon.service.jobs.local_jobs import LocalJobs
from nodedaemon.service.jobs.missed_hooks import MissedHooks
from nodedaemon.service.jobs.orphan_jobs import OrphanJobs
from nodedaemon.service.jobs.prolog_files import JobStarts, PrologFiles
from nodedaemon.service.jobs.registry import JobRegistry
from nodedaemon.service.jobs.slurm import NodeSlurm
from nodedaemon.service.jobs.slurm_jobs import SlurmJobs
from nodedaemon.service.jobs.time_limits import TimeLimits
from nodedaemon.service.journal.dispatcher import DIGEST_INTERVAL_COUNT, Dispatcher
from nodedaemon.service.journal.recover import recover_state
from nodedaemon.service.journal.segments import Journal
from nodedaemon.service.node import NodeIdentity
from nodedaemon.service.paths import lock_state, open_socket, prepare_directory, raise_descriptor_limit
from nodedaemon.service.periodic import IdleExit, Upkeep, repeat
from nodedaemon.service.sessions.attach import SessionAttach
from nodedaemon.service.sessions.connections import Connections
from nodedaemon.service.sessions.executor import Executor
from nodedaemon.service.sessions.frames import GrantFrames, SessionFrames, SessionReports
from nodedaemon.service.sessions.greeting import SessionGreeting
from nodedaemon.service.sessions.handover import Handover
from nodedaemon.service.sessions.losses import SessionLosses
from nodedaemon.service.sessions.recovery import GATHER_TIMEOUT_S, Recovery
from nodedaemon.service.sessions.resume import SessionResume
from nodedaemon.service.sessions.roster import Roster
from nodedaemon.service.sessions.strays import StraySessions
from nodedaemon.service.usage.database import DatabaseStore
from nodedaemon.service.usage.ledger import Ledger
from nodedaemon.service.usage.recorder import UsageRecorder
from nodedaemon.service.usage.spool import Spool
from nodedaemon.wire import messages


@dataclass(frozen=True)
class DaemonOptions:
    """What the command line adds to the configuration."""

    config_file: Path | None
    node: str
    exit_idle_s: float = 0.0
    digest_interval_count: int = DIGEST_INTERVAL_COUNT
    gather_timeout_s: float = GATHER_TIMEOUT_S


class Daemon:
    """`_assemble_*` create the parts, each from those before it; `run` starts them and `_parts` stops them."""

    def __init__(self, options: DaemonOptions, config: Config, log: Any) -> None:
        self._options = options
        self._log = log
        self._devices = make_devices(config, options.node)
        self._configuration = ActiveConfiguration(config, options.config_file, options.node, self._devices)
        self._node = NodeIdentity.of_this_run(options.node, self._configuration.settings.cluster.name)
        self._notifier = Notifier()
        self._stop = asyncio.Event()
        self._fatal: BaseException | None = None
        self._parts = contextlib.AsyncExitStack()

    # Assembly

    def _assemble(self) -> None:
        self._assemble_state()
        self._assemble_devices()
        self._assemble_sessions()
        self._assemble_jobs()
        self._assemble_service()
        self._assemble_control()

    def _assemble_state(self) -> None:
        settings, clock, log = self._configuration.settings, self._node.clock, self._log
        state_dir = Path(settings.daemon.state_dir)
        prepare_directory(state_dir, 0o700)
        self._lock = lock_state(state_dir)
        self._journal = Journal(
            _subdirectory(state_dir, "journal"),
            self._node.version,
            self._node.boot_id,
            segment_bytes_max=settings.daemon.journal_bytes_max,
            segments_max=settings.daemon.journal_files_max,
        )
        state = recover_state(self._journal, self._node.version, self._devices, log)
        self._dispatcher = Dispatcher(state, clock.monotonic_ns, self._journal, self._options.digest_interval_count)
        self._roster = Roster()
        storage = settings.storage
        is_owned = settings.daemon.local_jobs and storage.url.startswith("sqlite")
        self._ledger = Ledger(
            self._node,
            Spool(_subdirectory(state_dir, "spool"), bytes_max=storage.spool_bytes_max),
            DatabaseStore(storage.url, storage.pass_file, is_owned=is_owned),
            self._configuration,
            log,
        )
        self._recorder = UsageRecorder(self._node, state, self._devices, self._ledger, log)

    def _assemble_devices(self) -> None:
        dispatcher, devices, configuration, log = self._dispatcher, self._devices, self._configuration, self._log
        self._directory = DeviceDirectory(devices, dispatcher.state)
        self._administration = Administration(configuration, dispatcher, self._notifier, log)
        self._lanes = LaneAllocator(dispatcher, self._roster, devices, configuration, log)
        self._readings = DeviceReadings(dispatcher, self._roster, devices, configuration, self._recorder, log)
        self._launch_gate = LaunchGate(dispatcher.state, self._roster, devices, configuration)
        self._memory_limits = MemoryLimits(dispatcher, devices, log)
        self._mps = MpsServers(dispatcher.state, devices, configuration, log)

    def _assemble_sessions(self) -> None:
        dispatcher, roster, lanes, log = self._dispatcher, self._roster, self._lanes, self._log
        configuration, recorder = self._configuration, self._recorder
        self._handover = Handover(dispatcher, roster, lanes)
        self._executor = Executor(dispatcher, roster, lanes, self._handover, recorder, log)
        self._holders = HolderWatch(dispatcher, roster, self._handover, asyncio.get_running_loop(), log)
        self._losses = SessionLosses(dispatcher, roster, lanes, self._executor, configuration, recorder)
        self._attach = SessionAttach(dispatcher, roster, self._devices, configuration, recorder, log)
        self._recovery = Recovery(dispatcher, roster, lanes, self._handover, self._losses, log)
        self._recovery.on_gathered = self._on_gathered

    def _assemble_jobs(self) -> None:
        dispatcher, configuration, log = self._dispatcher, self._configuration, self._log
        self._slurm = NodeSlurm(self._node.name, configuration)
        self._files = PrologFiles(configuration, log)
        self._environment = JobEnvironment(configuration, self._directory, self._mps)
        self._registry = JobRegistry(dispatcher, configuration, self._memory_limits, self._recorder, self._node.clock)
        sessions = JobSessions(dispatcher, self._roster, self._attach, self._executor)
        starts = JobStarts(self._files, self._slurm, log)
        self._slurm_jobs = SlurmJobs(self._registry, sessions, self._directory, self._environment, starts, log)
        self._local_jobs = LocalJobs(
            self._registry, sessions, self._directory, self._environment, self._ledger, configuration
        )
        self._finder = JobFinder(self._registry, self._local_jobs, self._directory, self._slurm, configuration, log)

    def _assemble_service(self) -> None:
        dispatcher, attach, recovery, losses = self._dispatcher, self._attach, self._recovery, self._losses
        finder, log = self._finder, self._log
        grants = GrantFrames(dispatcher, self._handover, recovery)
        reports = SessionReports(dispatcher, self._recorder, self._environment.preload_uids, log)
        self._greeting = SessionGreeting(attach, finder, self._directory, recovery, losses, log)
        self._strays = StraySessions(attach, finder, self._readings, recovery, losses, log)
        self._frames = SessionFrames(
            dispatcher.state,
            self._roster,
            self._greeting,
            SessionResume(dispatcher, self._roster, self._lanes, attach, recovery, log),
            self._strays,
            {
                messages.Want: grants.on_want,
                messages.Return: grants.on_return,
                messages.Started: grants.on_started,
                messages.Unmapped: self._lanes.on_unmapped,
                messages.ProfileReport: self._recorder.take_profile,
                messages.Overrun: reports.on_overrun,
                messages.Fault: reports.on_fault,
                messages.Bye: losses.on_bye,
            },
        )

    def _assemble_control(self) -> None:
        dispatcher, configuration, log = self._dispatcher, self._configuration, self._log
        daemon = DaemonView(self._node, dispatcher, self._ledger, self._recovery, self._administration)
        why = WhyView(dispatcher, self._administration.drain_reasons)
        status = StatusView(daemon, dispatcher, self._roster, self._readings, self._lanes, why)
        requests = Requests(
            HookRequests(self._slurm_jobs),
            RunRequests(self._local_jobs, configuration),
            AdminRequests(self._administration, self._directory, log),
            ViewRequests(status, why, self._registry, self._node.version),
            self._recovery,
            configuration,
        )
        self._control = ControlSocket(requests, log)
        self._connections = Connections(self._frames, self._control, self._losses, configuration, log)
        registry = CollectorRegistry()
        self._metrics = MetricsPage(registry, log)
        metrics = EventMetrics(dispatcher.state, registry)
        registry.register(NodeCollector(status, self._ledger, self._recorder, self._administration))
        dispatcher.observers = [metrics, self._recorder, self._launch_gate, self._memory_limits, self._holders]
        dispatcher.executor = self._executor

    # Running

    async def run(self) -> int:
        """Serve until a signal; returns the exit status of the program."""
        raise_descriptor_limit()
        asyncio.get_running_loop().set_exception_handler(self._on_exception)
        self._assemble()
        async with self._parts:
            await self._start()
            self._notifier.ready(f"{len(self._devices)} devices")
            self._log.info(
                "salusd is up", node=self._node.name, devices=len(self._devices), pid=os.getpid(),
                socket=self._configuration.settings.daemon.socket,
            )  # fmt: skip
            await self._stop.wait()
            self._notifier.stopping()
            self._log.info("salusd stops; jobs continue under their leases")
        if self._fatal is not None:
            raise self._fatal
        return 0

    async def _start(self) -> None:
        """Start the parts. Each one is stopped in the opposite order."""
        parts, daemon = self._parts, self._configuration.settings.daemon
        readings = self._configuration.settings.readings
        sessions = _listen(parts, Path(daemon.socket), socket.SOCK_SEQPACKET)
        control = _listen(parts, Path(daemon.control_socket), socket.SOCK_STREAM)
        parts.callback(self._roster.close)
        self._journal.begin(self._dispatcher.snapshot)
        parts.callback(self._end_journal)
        self._administration.add_devices()
        parts.push_async_callback(self._ledger.close)
        self._recorder.start()
        parts.callback(self._end_records)
        parts.callback(self._readings.close)
        parts.callback(self._holders.close)
        self._recovery.start(self._options.gather_timeout_s)
        self._connections.listen(sessions)
        parts.callback(self._connections.close)
        await self._metrics.open(readings.metrics_address, readings.metrics_port)
        parts.callback(self._metrics.close)
        await self._control.listen(control)
        parts.push_async_callback(self._control.close)
        parts.push_async_callback(self._greeting.close)
        parts.push_async_callback(self._strays.close)
        self._start_tasks()
        parts.callback(self._recovery.stop)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._administration.reload_by_signal)

    def _start_tasks(self) -> None:
        configuration, log = self._configuration, self._log
        missed = MissedHooks(self._files, self._registry, self._slurm_jobs, log)
        orphans = OrphanJobs(self._slurm, self._dispatcher.state, self._slurm_jobs, self._files, self._holders, log)
        limits = TimeLimits(self._slurm, self._dispatcher, configuration, log)
        upkeep = Upkeep(self._notifier, self._dispatcher, self._recorder)
        idle = IdleExit(self._options.exit_idle_s, self._dispatcher, self._stop, log)
        for work in (
            self._ledger.run(),
            repeat(
                configuration.reading_interval_s,
                self._readings.sample,
                self._holders.look_at_processes,
                self._lanes.watch,
                self._local_jobs.end_finished,
            ),
            repeat(configuration.usage_interval_s, self._recorder.close_interval, is_delayed=True),
            repeat(upkeep.interval_s, upkeep.run, self._mps.stop_unused),
            repeat(idle.interval_s, idle.run),
            self._compare_jobs(missed.compare),
            self._compare_jobs(orphans.compare, limits.extend),
        ):
            self._parts.push_async_callback(_cancel, asyncio.create_task(work))

    async def _compare_jobs(self, *actions: Any) -> None:
        await self._recovery.wait_gathered()
        await repeat(self._configuration.reconcile_interval_s, *actions)

    def _end_records(self) -> None:
        if self._fatal is None:
            self._recorder.stop()

    def _end_journal(self) -> None:
        if self._fatal is None:
            self._journal.end()
        else:
            self._journal.close()

    def _on_exception(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._log.error("unexpected error", what=context.get("message"), exc_info=error)
        if isinstance(error, AssertionError):
            # A broken invariant: this process cannot trust its own state any more.
            self._fatal = error
            self._stop.set()

    def _on_gathered(self) -> None:
        self._readings.recall_lost()
        for device in self._devices:
            self._dispatcher.submit(events.Ticked(device))
        self._holders.look_soon()
        if self._recovery.adopted_count:
            self._log.info("sessions taken back", count=self._recovery.adopted_count)


def _listen(parts: contextlib.AsyncExitStack, path: Path, kind: socket.SocketKind) -> socket.socket:
    listener = open_socket(path, kind)
    parts.callback(path.unlink, missing_ok=True)
    return listener


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _subdirectory(parent: Path, name: str) -> Path:
    path = parent / name
    prepare_directory(path, 0o700)
    return path
