"""salusd: puts the parts together, runs them and stops them. One daemon runs per node.

On start it locks the state directory, replays the journal, adds the devices, waits for earlier sessions to reconnect,
and then serves. On stop it closes the sockets. The jobs continue, and reconnect after the next start. A failed
assertion in the core ends the daemon. The journal stays, and systemd starts the daemon again.
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
from nodedaemon.service.jobs.local_jobs import LocalJobs
from nodedaemon.service.jobs.missed_hooks import MissedHooks
from nodedaemon.service.jobs.orphan_jobs import OrphanJobs
from nodedaemon.service.jobs.prolog_files import JobStarts, PrologFiles
from nodedaemon.service.jobs.registry import JobRegistry
from nodedaemon.service.jobs.slurm import NodeSlurm
from nodedaemon.service.jobs.slurm_jobs import SlurmJobs
from nodedaemon.service.jobs.suspensions import Suspensions
from nodedaemon.service.jobs.time_limits import TimeLimits
from nodedaemon.service.jobs.unannounced_jobs import UnannouncedJobs
from nodedaemon.service.journal.dispatcher import DIGEST_INTERVAL_COUNT, Dispatcher
from nodedaemon.service.journal.recover import recover_state
from nodedaemon.service.journal.segments import Journal
from nodedaemon.service.logs import log
from nodedaemon.service.node import NodeIdentity
from nodedaemon.service.paths import lock_state, open_socket, prepare_directory, raise_descriptor_limit
from nodedaemon.service.periodic import DaemonUpkeep, IdleExit, repeat
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
from nodedaemon.service.shell import Shell
from nodedaemon.service.tasks import BackgroundTasks
from nodedaemon.service.usage.database import DatabaseStore
from nodedaemon.service.usage.ledger import Ledger
from nodedaemon.service.usage.recorder import UsageRecorder
from nodedaemon.service.usage.spool import Spool
from nodedaemon.wire import messages


@dataclass(frozen=True)
class DaemonOptions:
    """Options of the command line."""

    config_file: Path | None
    node: str
    exit_idle_s: float = 0.0
    digest_interval_count: int = DIGEST_INTERVAL_COUNT
    gather_timeout_s: float = GATHER_TIMEOUT_S


class SalusDaemon:
    """`_assemble_*` create the parts, each from those before it; `run` starts them and `_parts` stops them."""

    def __init__(self, options: DaemonOptions, config: Config) -> None:
        self._options = options
        self._devices = make_devices(config, options.node)
        self._configuration = ActiveConfiguration(config, options.config_file, options.node, self._devices)
        self._node = NodeIdentity.of_this_run(options.node, self._configuration.settings.cluster.name)
        self._notifier = Notifier()
        self._stop = asyncio.Event()
        self._tasks = BackgroundTasks()
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
        settings, clock = self._configuration.settings, self._node.clock
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
        state = recover_state(self._journal, self._node.version, self._devices)
        self._dispatcher = Dispatcher(state, clock.monotonic_ns, self._journal, self._options.digest_interval_count)
        self._roster = Roster()
        storage = settings.storage
        is_owned = settings.daemon.local_jobs and storage.url.startswith("sqlite")
        database = DatabaseStore(storage, self._node.local_cluster, is_owned=is_owned)
        spool = Spool(_subdirectory(state_dir, "spool"), bytes_max=storage.spool_bytes_max)
        self._ledger = Ledger(spool, database, self._configuration)
        self._recorder = UsageRecorder(self._node, state, self._devices, self._ledger)
        self._slurm = NodeSlurm(self._node.name, self._configuration)
        devices = DeviceDirectory(self._devices, state)
        self._shell = Shell(self._configuration, devices, self._dispatcher, self._roster, self._recorder, self._slurm)

    def _assemble_devices(self) -> None:
        self._administration = Administration(self._configuration, self._dispatcher, self._notifier)
        self._lanes = LaneAllocator(self._shell)
        self._readings = DeviceReadings(self._shell)
        self._launch_gate = LaunchGate(self._shell)
        self._memory_limits = MemoryLimits(self._shell)
        self._mps = MpsServers(self._shell)

    def _assemble_sessions(self) -> None:
        shell, lanes = self._shell, self._lanes
        self._handover = Handover(shell, lanes)
        self._executor = Executor(shell, lanes, self._handover)
        self._holders = HolderWatch(shell, self._handover, asyncio.get_running_loop())
        self._losses = SessionLosses(shell, lanes, self._executor)
        self._attach = SessionAttach(shell, self._losses)
        self._recovery = Recovery(shell, lanes, self._handover, self._losses)
        self._recovery.on_gathered = self._on_gathered

    def _assemble_jobs(self) -> None:
        shell = self._shell
        self._files = PrologFiles(self._configuration)
        self._environment = JobEnvironment(shell, self._mps)
        self._registry = JobRegistry(shell, self._memory_limits, self._attach, self._executor)
        starts = JobStarts(self._files, self._slurm)
        self._slurm_jobs = SlurmJobs(self._registry, self._environment, starts)
        self._local_jobs = LocalJobs(self._registry, self._environment, self._ledger)
        unannounced = UnannouncedJobs(self._registry, self._slurm_jobs)
        self._finder = JobFinder(self._registry, self._local_jobs, unannounced)

    def _assemble_service(self) -> None:
        attach, finder, recovery = self._attach, self._finder, self._recovery
        grants = GrantFrames(self._dispatcher, self._handover, recovery)
        reports = SessionReports(self._shell, self._environment.preload_uids)
        self._greeting = SessionGreeting(attach, finder, recovery)
        self._strays = StraySessions(attach, finder, self._readings, recovery)
        self._frames = SessionFrames(
            self._shell,
            self._greeting,
            SessionResume(self._shell, self._lanes, attach, recovery),
            self._strays,
            {
                messages.Want: grants.on_want,
                messages.Return: grants.on_return,
                messages.Started: grants.on_started,
                messages.Unmapped: self._lanes.on_unmapped,
                messages.ProfileReport: self._recorder.on_profile,
                messages.Overrun: reports.on_overrun,
                messages.Fault: reports.on_fault,
                messages.Bye: self._losses.on_bye,
            },
        )

    def _assemble_control(self) -> None:
        dispatcher, configuration = self._dispatcher, self._configuration
        daemon = DaemonView(self._node, dispatcher, self._ledger, self._recovery, self._administration)
        why = WhyView(dispatcher, self._administration.drain_reasons)
        status = StatusView(self._shell, daemon, self._readings, self._lanes, why)
        requests = Requests(
            [
                HookRequests(self._slurm_jobs),
                RunRequests(self._local_jobs, configuration),
                AdminRequests(self._administration, self._shell.devices),
                ViewRequests(status, why, self._registry),
            ],
            self._recovery,
            configuration,
        )
        self._control = ControlSocket(requests, configuration)
        self._connections = Connections(self._frames, self._control, self._losses, configuration)
        registry = CollectorRegistry()
        self._metrics = MetricsPage(registry)
        metrics = EventMetrics(dispatcher.state, registry)
        registry.register(NodeCollector(status, self._ledger, self._recorder, self._administration))
        dispatcher.observers = [metrics, self._recorder, self._launch_gate, self._memory_limits, self._holders]
        dispatcher.executor = self._executor

    # Running

    async def run(self) -> int:
        """Serve until a signal; returns the exit status of the program."""
        raise_descriptor_limit()
        # The driver tests with a file lease whether a lane is shared. If a process opens the lane at that moment, the
        # kernel sends SIGIO, which by default ends the daemon.
        signal.signal(signal.SIGIO, lambda *_: None)
        asyncio.get_running_loop().set_exception_handler(self._on_exception)
        self._assemble()
        async with self._parts:
            await self._start()
            self._notifier.ready(f"{len(self._devices)} devices")
            log.info(
                "salusd is up", node=self._node.name, devices=len(self._devices), pid=os.getpid(),
                socket=self._configuration.settings.daemon.socket,
            )  # fmt: skip
            await self._stop.wait()
            self._notifier.stopping()
            log.info("salusd is stopping; jobs continue under their leases")
        if self._fatal is not None:
            raise self._fatal
        return 0

    async def _start(self) -> None:
        """Start the parts. They are stopped in the opposite order."""
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
        parts.callback(self._control.close)
        parts.callback(self._lanes.stop)
        for owner in (self._control, self._greeting, self._strays, self._losses, self._lanes):
            parts.push_async_callback(owner.tasks.close)
        parts.push_async_callback(self._tasks.close)
        self._start_tasks()
        parts.callback(self._recovery.stop)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._administration.reload_by_signal)

    def _start_tasks(self) -> None:
        configuration = self._configuration
        missed = MissedHooks(self._files, self._registry, self._slurm_jobs)
        orphans = OrphanJobs(self._shell, self._slurm_jobs, self._holders)
        limits = TimeLimits(self._shell)
        upkeep = DaemonUpkeep(self._notifier, self._dispatcher, self._recorder)
        idle = IdleExit(self._options.exit_idle_s, self._dispatcher, self._stop)
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
            self._compare_jobs(orphans.compare, limits.extend, Suspensions(self._shell).compare),
        ):
            self._tasks.start(work)

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
        log.error("unexpected error", what=context.get("message"), exc_info=error)
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
            log.info("sessions reconnected", count=self._recovery.adopted_count)


def _listen(parts: contextlib.AsyncExitStack, path: Path, kind: socket.SocketKind) -> socket.socket:
    listener = open_socket(path, kind)
    parts.callback(path.unlink, missing_ok=True)
    return listener


def _subdirectory(parent: Path, name: str) -> Path:
    path = parent / name
    prepare_directory(path, 0o700)
    return path
