"""Creates the parts of salusd, one room after another. Nothing runs here: `daemon` starts and stops the parts.

Each room is a value that lists its parts, and `of` creates it from the rooms before it. A part that only its own room
uses is not listed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from nodedaemon.core.types import DeviceId
from nodedaemon.drivers.device import DeviceDriver
from nodedaemon.service.control.administration import Administration
from nodedaemon.service.control.configuration import ActiveConfiguration
from nodedaemon.service.control.control_socket import ControlSocket
from nodedaemon.service.control.metrics import EventMetrics, NodeCollector
from nodedaemon.service.control.requests import AdminRequests, HookRequests, Requests, RunRequests, ViewRequests
from nodedaemon.service.control.status import DaemonView, StatusView
from nodedaemon.service.control.systemd import Notifier
from nodedaemon.service.control.why import WhyView
from nodedaemon.service.devices.directory import DeviceDirectory
from nodedaemon.service.devices.holders import HolderWatch
from nodedaemon.service.devices.lanes import LaneAllocator
from nodedaemon.service.devices.launch_gate import LaunchGate
from nodedaemon.service.devices.memory_limits import MemoryLimits
from nodedaemon.service.devices.mps import MpsServers
from nodedaemon.service.devices.readings import DeviceReadings
from nodedaemon.service.jobs.environment import JobEnvironment
from nodedaemon.service.jobs.identity import JobFinder
from nodedaemon.service.jobs.local_jobs import LocalJobs
from nodedaemon.service.jobs.prolog_files import JobStarts, PrologFiles
from nodedaemon.service.jobs.registry import JobRegistry
from nodedaemon.service.jobs.slurm import NodeSlurm
from nodedaemon.service.jobs.slurm_jobs import SlurmJobs
from nodedaemon.service.jobs.unannounced_jobs import UnannouncedJobs
from nodedaemon.service.journal.dispatcher import Dispatcher
from nodedaemon.service.journal.recover import recover_state
from nodedaemon.service.journal.segments import Journal
from nodedaemon.service.node import NodeIdentity
from nodedaemon.service.paths import lock_state
from nodedaemon.service.sessions.attach import SessionAttach
from nodedaemon.service.sessions.connections import Connections
from nodedaemon.service.sessions.executor import Executor
from nodedaemon.service.sessions.frames import FrameHandler, GrantFrames, SessionFrames, SessionReports
from nodedaemon.service.sessions.greeting import SessionGreeting
from nodedaemon.service.sessions.handover import Handover
from nodedaemon.service.sessions.losses import SessionLosses
from nodedaemon.service.sessions.recovery import Recovery
from nodedaemon.service.sessions.resume import SessionResume
from nodedaemon.service.sessions.roster import Roster
from nodedaemon.service.sessions.strays import StraySessions
from nodedaemon.service.shell import Shell
from nodedaemon.service.usage.database import DatabaseStore
from nodedaemon.service.usage.ledger import Ledger
from nodedaemon.service.usage.recorder import UsageRecorder
from nodedaemon.service.usage.spool import Spool
from nodedaemon.wire import messages
from nodedaemon.wire.listener import prepare_directory
from nodedaemon.wire.metrics_page import MetricsPage


@dataclass(frozen=True, slots=True)
class StateRoom:
    """This node, what salusd keeps in its state directory, and the shell that all other parts share."""

    node: NodeIdentity
    notifier: Notifier
    lock: int
    journal: Journal
    ledger: Ledger
    shell: Shell

    @classmethod
    def of(
        cls,
        configuration: ActiveConfiguration,
        node: NodeIdentity,
        drivers: Mapping[DeviceId, DeviceDriver],
        digest_interval_count: int,
    ) -> StateRoom:
        """Lock the state directory and replay the journal."""
        settings = configuration.settings
        state_dir = Path(settings.daemon.state_dir)
        prepare_directory(state_dir, 0o700)
        lock = lock_state(state_dir)
        journal = Journal(
            _subdirectory(state_dir, "journal"),
            node.version,
            node.boot_id,
            segment_bytes_max=settings.daemon.journal_bytes_max,
            segments_max=settings.daemon.journal_files_max,
        )
        state = recover_state(journal, node.version, drivers)
        dispatcher = Dispatcher(state, node.clock.monotonic_ns, journal, digest_interval_count)
        storage = settings.storage
        is_owned = settings.daemon.local_jobs and storage.url.startswith("sqlite")
        database = DatabaseStore(storage, node.local_cluster, is_owned=is_owned)
        spool = Spool(_subdirectory(state_dir, "spool"), bytes_max=storage.spool_bytes_max)
        ledger = Ledger(spool, database, configuration)
        recorder = UsageRecorder(node, state, drivers, ledger)
        slurm = NodeSlurm(node.name, configuration)
        devices = DeviceDirectory(drivers, state)
        shell = Shell(configuration, devices, dispatcher, Roster(), recorder, slurm)
        return cls(node, Notifier(), lock, journal, ledger, shell)


@dataclass(frozen=True, slots=True)
class DeviceRoom:
    """Lane memory, readings and limits of the devices."""

    lanes: LaneAllocator
    readings: DeviceReadings
    launch_gate: LaunchGate
    memory_limits: MemoryLimits
    mps: MpsServers

    @classmethod
    def of(cls, shell: Shell) -> DeviceRoom:
        return cls(
            LaneAllocator(shell), DeviceReadings(shell), LaunchGate(shell), MemoryLimits(shell), MpsServers(shell)
        )


@dataclass(frozen=True, slots=True)
class SessionRoom:
    """Sessions from their attachment to their end."""

    handover: Handover
    executor: Executor
    holders: HolderWatch
    losses: SessionLosses
    attach: SessionAttach
    recovery: Recovery

    @classmethod
    def of(cls, shell: Shell, devices: DeviceRoom) -> SessionRoom:
        lanes = devices.lanes
        handover = Handover(shell, lanes)
        executor = Executor(shell, lanes, handover)
        holders = HolderWatch(shell, handover, asyncio.get_running_loop())
        losses = SessionLosses(shell, lanes, executor)
        attach = SessionAttach(shell, losses)
        return cls(handover, executor, holders, losses, attach, Recovery(shell, lanes, handover, losses))


@dataclass(frozen=True, slots=True)
class JobRoom:
    """The jobs of this node, and how to find the job of a process."""

    files: PrologFiles
    environment: JobEnvironment
    registry: JobRegistry
    slurm_jobs: SlurmJobs
    local_jobs: LocalJobs
    finder: JobFinder

    @classmethod
    def of(cls, state: StateRoom, devices: DeviceRoom, sessions: SessionRoom) -> JobRoom:
        shell = state.shell
        files = PrologFiles(shell.configuration)
        environment = JobEnvironment(shell, devices.mps)
        registry = JobRegistry(shell, devices.memory_limits, sessions.attach, sessions.executor)
        slurm_jobs = SlurmJobs(registry, environment, JobStarts(files, shell.slurm))
        local_jobs = LocalJobs(registry, environment, state.ledger)
        finder = JobFinder(registry, local_jobs, UnannouncedJobs(registry, slurm_jobs))
        return cls(files, environment, registry, slurm_jobs, local_jobs, finder)


@dataclass(frozen=True, slots=True)
class FrameRoom:
    """The receivers of the frames that sessions send."""

    greeting: SessionGreeting
    strays: StraySessions
    frames: SessionFrames

    @classmethod
    def of(cls, shell: Shell, devices: DeviceRoom, sessions: SessionRoom, jobs: JobRoom) -> FrameRoom:
        attach, finder, recovery = sessions.attach, jobs.finder, sessions.recovery
        grants = GrantFrames(shell.dispatcher, sessions.handover, recovery)
        reports = SessionReports(shell, jobs.environment.preload_uids)
        greeting = SessionGreeting(attach, finder, recovery)
        strays = StraySessions(attach, finder, devices.readings, recovery)
        resume = SessionResume(shell, devices.lanes, attach, recovery)
        handlers: dict[type[messages.Message], FrameHandler] = {
            messages.Want: grants.on_want,
            messages.Return: grants.on_return,
            messages.Started: grants.on_started,
            messages.Unmapped: devices.lanes.on_unmapped,
            messages.ProfileReport: shell.recorder.on_profile,
            messages.Overrun: reports.on_overrun,
            messages.Fault: reports.on_fault,
            messages.Bye: sessions.losses.on_bye,
        }
        return cls(greeting, strays, SessionFrames(shell, greeting, resume, strays, handlers))


@dataclass(frozen=True, slots=True)
class ControlRoom:
    """The sockets, the requests that they serve, and the metrics."""

    administration: Administration
    control: ControlSocket
    connections: Connections
    metrics: MetricsPage

    @classmethod
    def of(
        cls, state: StateRoom, devices: DeviceRoom, sessions: SessionRoom, jobs: JobRoom, frames: FrameRoom
    ) -> ControlRoom:
        """Also connects the dispatcher with those that carry out and observe its commands."""
        shell, recovery = state.shell, sessions.recovery
        dispatcher, configuration = shell.dispatcher, shell.configuration
        administration = Administration(configuration, dispatcher, state.notifier)
        daemon = DaemonView(state.node, dispatcher, state.ledger, recovery, administration)
        why = WhyView(dispatcher)
        status = StatusView(shell, daemon, devices.readings, devices.lanes, why)
        requests = Requests(
            [
                HookRequests(jobs.slurm_jobs),
                RunRequests(jobs.local_jobs, configuration),
                AdminRequests(administration, shell.devices),
                ViewRequests(status, why, jobs.registry),
            ],
            recovery,
            configuration,
        )
        control = ControlSocket(requests, configuration)
        connections = Connections(frames.frames, control, sessions.losses, configuration)
        registry = CollectorRegistry()
        metrics = EventMetrics(dispatcher.state, registry)
        registry.register(NodeCollector(status, state.ledger, shell.recorder, administration))
        dispatcher.executor = sessions.executor
        dispatcher.observers = [metrics, shell.recorder, devices.launch_gate, devices.memory_limits, sessions.holders]
        return cls(administration, control, connections, MetricsPage(registry))


@dataclass(frozen=True, slots=True)
class Rooms:
    """All parts of one daemon."""

    state: StateRoom
    devices: DeviceRoom
    sessions: SessionRoom
    jobs: JobRoom
    frames: FrameRoom
    control: ControlRoom

    @classmethod
    def of(cls, state: StateRoom) -> Rooms:
        devices = DeviceRoom.of(state.shell)
        sessions = SessionRoom.of(state.shell, devices)
        jobs = JobRoom.of(state, devices, sessions)
        frames = FrameRoom.of(state.shell, devices, sessions, jobs)
        return cls(state, devices, sessions, jobs, frames, ControlRoom.of(state, devices, sessions, jobs, frames))


def _subdirectory(parent: Path, name: str) -> Path:
    path = parent / name
    prepare_directory(path, 0o700)
    return path
