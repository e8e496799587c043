"""salusd: puts the parts together, runs them, and takes them down. One a node.

Start: lock, journal, devices, old sessions gathered, then everybody is served. Stop: sockets close and jobs run on; the
next start takes them back. An assertion of the core ends the daemon: the journal stays, the supervisor restarts it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
import uuid
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from nodedaemon.config import Config
from nodedaemon.core import commands, events
from nodedaemon.core.engine import Engine
from nodedaemon.core.errors import OperatingError, SalusError
from nodedaemon.core.types import DeviceId, SessionId
from nodedaemon.drivers.cgroup import list_pids
from nodedaemon.service.control.configuration import Rules
from nodedaemon.service.control.metrics import MetricsPage, NodeCollector, Tally
from nodedaemon.service.control.requests import Control
from nodedaemon.service.control.status import StatusView, Viewer
from nodedaemon.service.control.systemd import Notifier
from nodedaemon.service.devices.discovery import make_devices
from nodedaemon.service.devices.lanes import LaneKeeper
from nodedaemon.service.devices.launch_gate import LaunchKeeper
from nodedaemon.service.devices.memory_limits import MemoryLimits
from nodedaemon.service.devices.mps import MpsServers
from nodedaemon.service.devices.readings import Sampler
from nodedaemon.service.jobs.prolog_files import Markers
from nodedaemon.service.jobs.registry import JobBook, JobStart, Recorded, TaskRequest, adaptor_environment
from nodedaemon.service.jobs.slurm import node_commands, watch_slurm
from nodedaemon.service.journal.dispatcher import DIGEST_INTERVAL_COUNT, Dispatcher, Replay, replay
from nodedaemon.service.journal.segments import Journal
from nodedaemon.service.journal.state import SessionFacts, ShellState
from nodedaemon.service.paths import lock_state, open_socket, prepare_directory, raise_descriptor_limit
from nodedaemon.service.sessions.attach import SessionDesk
from nodedaemon.service.sessions.connections import Connections, Limits
from nodedaemon.service.sessions.executor import Executor
from nodedaemon.service.sessions.frames import Server
from nodedaemon.service.sessions.recovery import GATHER_TIMEOUT_S, Recovery
from nodedaemon.service.sessions.roster import LiveSession, Roster
from nodedaemon.service.usage.database import DatabaseStore
from nodedaemon.service.usage.ledger import Ledger
from nodedaemon.service.usage.recorder import Books
from nodedaemon.service.usage.spool import Spool
from nodedaemon.wire.control import DaemonStatus, NodeStatus
from nodedaemon.wire.messages import ProfileReport

#: Between two records of one session's maxima; the last comes when it ends.
MEASURE_INTERVAL_NS = 10_000_000_000
CLOCK_STEP_NS = 1_000_000_000


@dataclass(frozen=True)
class Options:
    """What the command line says beside the configuration."""

    config_file: Path | None
    node: str
    exit_idle_s: float = 0.0
    digest_interval_count: int = DIGEST_INTERVAL_COUNT
    gather_timeout_s: float = GATHER_TIMEOUT_S


class Daemon:
    def __init__(self, options: Options, config: Config, log: Any) -> None:
        self._options = options
        self._log = log
        self._node = options.node
        self._devices = make_devices(config, options.node)
        self._rules = Rules(config, options.config_file, options.node, self._devices, log)
        self._version = version("salus")
        self._boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._started_utc_ns = time.time_ns()
        self._wakes: dict[DeviceId, asyncio.TimerHandle] = {}
        self._notifier = Notifier()
        self._stop = asyncio.Event()
        self._gathered = asyncio.Event()
        self._fatal: BaseException | None = None
        self._idle_since_s = time.monotonic()
        self._clock_offset_ns = time.time_ns() - time.monotonic_ns()
        self._tasks: list[asyncio.Task[None]] = []

    # Assembly

    def _assemble(self) -> None:
        state_dir = Path(self._rules.settings.daemon.state_dir)
        prepare_directory(state_dir, 0o700)
        self._lock = lock_state(state_dir)
        self._journal = Journal(
            _subdirectory(state_dir, "journal"),
            self._version,
            self._boot,
            segment_bytes_max=self._rules.settings.daemon.journal_bytes_max,
            segments_max=self._rules.settings.daemon.journal_files_max,
        )
        state = self._recall()
        self._dispatcher = Dispatcher(state, time.monotonic_ns, self._journal, self._options.digest_interval_count)
        self._roster = Roster()
        self._ledger = self._make_ledger(state_dir)
        self._books = self._make_books(state)
        self._registry = CollectorRegistry()
        self._tally = Tally(state, self._registry)
        self._assemble_execution()
        self._assemble_sessions()
        self._assemble_control()
        self._dispatcher.executor = self._executor
        self._dispatcher.observers = [
            self._tally,
            self._books,
            self._launches,
            self._memory_limits,
            self._sampler,
        ]

    def _assemble_execution(self) -> None:
        self._lanes = LaneKeeper(
            self._dispatcher,
            self._roster,
            self._devices,
            end_session=self._end_session,
            poll=self._watch_soon,
            unmap_timeout_ns=lambda: self._rules.settings.lanes.unmap_timeout_ns,
            log=self._log,
        )
        self._executor = Executor(
            self._dispatcher,
            self._roster,
            self._lanes,
            wake_at=self._wake_at,
            welcome=self._welcome,
            revoke_raised=self._watch_soon,
            report=self._report,
            log=self._log,
        )
        self._launches = LaunchKeeper(self._dispatcher.state, self._roster, self._devices, self._rules.settings_of)
        self._memory_limits = MemoryLimits(
            self._dispatcher.state, self._devices, note=self._dispatcher.note, log=self._log
        )
        run_directory = Path(self._rules.settings.daemon.socket).parent
        self._mps = MpsServers(
            self._dispatcher.state, self._devices, self._rules.settings_of, run_directory, log=self._log
        )
        self._desk = SessionDesk(
            self._dispatcher,
            self._roster,
            self._devices,
            settings=self._rules.settings_of,
            loop=asyncio.get_running_loop(),
            utc_ns=time.time_ns,
            on_death=self._on_death,
            report=self._report,
            log=self._log,
        )

    def _assemble_sessions(self) -> None:
        loop = asyncio.get_running_loop()
        self._recovery = Recovery(
            self._dispatcher,
            self._roster,
            self._lanes,
            self._executor,
            self._desk,
            loop=loop,
            on_gathered=self._on_gathered,
            watch_contact=self._watch_contact,
            log=self._log,
        )
        self._jobs = JobBook(
            self._dispatcher,
            self._roster,
            self._desk,
            self._executor,
            self._devices,
            settings=self._rules.settings_of,
            find_profile=self._find_profile,
            list_pids=lambda: list_pids(self._node, self._rules.settings.slurm.bin_dir),
            environment=self._environment,
            utc_ns=time.time_ns,
            on_job=self._books.on_job,
            confine=self._memory_limits.confine,
            announce=self._announce,
            complete=self._complete,
            log=self._log,
        )
        self._markers = Markers(
            lambda: Path(self._rules.settings.daemon.socket).parent / "jobs",
            lambda: self._dispatcher.state.jobs,
            start=self._jobs.job_start,
            end=self._jobs.job_end,
            ask=lambda job: node_commands(self._node, self._rules).start(job),
            log=self._log,
        )
        self._server = Server(
            self._dispatcher,
            self._roster,
            self._lanes,
            self._executor,
            self._desk,
            loop=loop,
            find_job=self._jobs.find_job,
            find_device=self._jobs.device_of,
            resume=self._recovery.resume,
            measure=self._measure_process,
            is_gathering=lambda: self._recovery.is_gathering,
            wait_gathered=self._wait_gathered,
            user_sessions_max=lambda: self._rules.settings.daemon.user_sessions_max,
            contact_timeout_ns=lambda: self._rules.settings.lanes.unmap_timeout_ns,
            on_profile=self._on_profile,
            report=self._report,
            log=self._log,
        )

    def _assemble_control(self) -> None:
        loop, clock = asyncio.get_running_loop(), time.monotonic_ns
        self._sampler = Sampler(
            self._dispatcher,
            self._roster,
            self._lanes,
            self._executor,
            self._devices,
            loop=loop,
            timeout_s=lambda: self._rules.settings.readings.timeout_ns / 1e9,
            sweep=self._jobs.sweep,
            report_device=lambda device, fault: self._books.report("xid", None, fault, device),
            report_strangers=lambda device, told: self._books.report("foreign_memory", None, told, device),
            log=self._log,
        )
        self._steps = watch_slurm(
            self._node, self._rules, self._dispatcher, self._jobs, self._markers, self._sampler, self._log
        )
        self._view = StatusView(
            self._dispatcher,
            self._roster,
            self._devices,
            self._sampler.readings,
            self._rules.drain_reasons,
            held_bytes=self._lanes.held_bytes,
        )
        self._control = Control(
            self._jobs,
            self._view,
            self._dispatcher,
            self._rules,
            self._notifier,
            wait_gathered=self._wait_gathered,
            node_status=self._node_status,
            version=self._version,
            log=self._log,
        )
        self._connections = Connections(
            loop,
            clock,
            self._connection_limits,
            on_message=self._server.on_message,
            on_request=self._control.on_request,
            on_lost=self._server.on_lost,
            log=self._log,
        )

    def _make_ledger(self, state_dir: Path) -> Ledger:
        storage = self._rules.settings.storage
        is_owned = self._rules.settings.daemon.local_jobs and storage.url.startswith("sqlite")
        return Ledger(
            Spool(_subdirectory(state_dir, "spool"), bytes_max=storage.spool_bytes_max),
            DatabaseStore(storage.url, storage.pass_file, is_owned=is_owned),
            interval_s=lambda: self._rules.settings.storage.batch_interval_ns / 1e9,
            slow_s=lambda: self._rules.settings.storage.timeout_ns / 1e9,
            log=self._log,
        )

    def _make_books(self, state: ShellState) -> Books:
        return Books(
            state,
            self._devices,
            cluster=self._rules.settings.cluster.name,
            node=self._node,
            incarnation=str(uuid.uuid4()),
            boot=self._boot,
            version=self._version,
            record=self._ledger.record,
            clock=time.monotonic_ns,
            utc_ns=time.time_ns,
        )

    def _recall(self) -> ShellState:
        """State from the journal, or a fresh one: a journal that cannot be replayed must not keep the daemon down."""
        segment = self._journal.recover()
        if self._journal.refusal:
            self._log.error("journal not taken over, sessions are taken back one by one", why=self._journal.refusal)
        if segment is None:
            return ShellState(Engine())
        try:
            found: Replay = replay(segment)
            if found.mismatch_count and segment.head.release != self._version:
                raise OperatingError(f"replay journal: release {segment.head.release} decided otherwise")
        except (SalusError, AssertionError, KeyError, ValueError) as error:
            self._log.error("journal not replayed, starting afresh", file=segment.path.name, why=str(error))
            segment.path.rename(segment.path.with_name(segment.path.name + ".damaged"))
            return ShellState(Engine())
        unknown = {device.device for device in found.engine.snapshot().devices} - set(self._devices)
        if unknown:
            self._log.error("journal not taken over: it has devices that are not configured", devices=sorted(unknown))
            return ShellState(Engine())
        self._log.info(
            "journal replayed",
            events=found.event_count,
            sessions=len(found.state.sessions),
            digests=found.digest_count,
            mismatches=found.mismatch_count,
        )
        return found.state

    # Running

    async def run(self) -> int:
        """Serve until a signal; the exit status of the program."""
        raise_descriptor_limit()
        asyncio.get_running_loop().set_exception_handler(self._on_exception)
        self._assemble()
        sessions = open_socket(Path(self._rules.settings.daemon.socket), socket.SOCK_SEQPACKET)
        control = open_socket(Path(self._rules.settings.daemon.control_socket), socket.SOCK_STREAM)
        self._journal.begin(self._dispatcher.snapshot)
        self._rules.add_devices(self._dispatcher)
        self._books.start()
        self._recovery.start(self._options.gather_timeout_s)
        self._connections.listen(sessions)
        await self._control.listen(control)
        await self._open_metrics()
        self._set_signals()
        self._tasks = [
            asyncio.create_task(self._ledger.run()),
            asyncio.create_task(self._sampler.run(lambda: self._rules.settings.readings.interval_ns / 1e9)),
            asyncio.create_task(self._close_intervals()),
            asyncio.create_task(self._look_after()),
            asyncio.create_task(self._markers.run(self._reconcile_interval_s, self._wait_gathered)),
            asyncio.create_task(self._steps.run(self._reconcile_interval_s, self._wait_gathered)),
        ]
        self._notifier.ready(f"{len(self._devices)} devices")
        self._log.info(
            "salusd is up", node=self._node, devices=len(self._devices), socket=self._rules.settings.daemon.socket
        )
        await self._stop.wait()
        await self._close()
        if self._fatal is not None:
            raise self._fatal
        return 0

    async def _open_metrics(self) -> None:
        readings = self._rules.settings.readings
        self._page = MetricsPage(self._registry)
        if not readings.metrics_port:
            return
        self._registry.register(
            NodeCollector(
                lambda: self._node_status(Viewer(0, is_operator=True), ""),
                lambda: {value.name.lower(): count for value, count in self._ledger.spool.dropped.items()},
                lambda: self._books.event_counts,
                lambda: self._rules.reload_utc_s,
            )
        )
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((readings.metrics_address, readings.metrics_port))
        except OSError as error:
            # Metrics are not worth a node without its daemon.
            listener.close()
            self._log.error("metrics not served", port=readings.metrics_port, why=error.strerror)
            return
        await self._page.listen(listener)

    async def _close(self) -> None:
        self._notifier.stopping()
        self._log.info("salusd stops; jobs run on under their leases")
        self._recovery.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.close()
        await self._control.close()
        self._page.close()
        self._connections.close()
        self._sampler.close()
        if self._fatal is None:
            self._books.stop()
        await self._ledger.close()
        if self._fatal is None:
            self._journal.end()
        else:
            self._journal.close()
        self._roster.close()
        for path in (self._rules.settings.daemon.socket, self._rules.settings.daemon.control_socket):
            Path(path).unlink(missing_ok=True)

    def _set_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload_by_signal)

    def _reload_by_signal(self) -> None:
        try:
            self._rules.reload(self._dispatcher, self._notifier)
        except SalusError as error:
            self._log.error("configuration not reloaded, the old one stays", why=str(error))

    def _on_exception(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._log.error("unexpected", what=context.get("message"), exc_info=error)
        if isinstance(error, AssertionError):
            # A broken invariant: nothing that this process thinks is to be trusted any more.
            self._fatal = error
            self._stop.set()

    async def _close_intervals(self) -> None:
        while True:
            await asyncio.sleep(self._rules.settings.storage.usage_interval_ns / 1e9)
            self._books.close_interval()

    async def _look_after(self) -> None:
        """Once a second or so: watchdog, stepped clocks, and whether a private daemon is still wanted."""
        period_s = min(self._notifier.watchdog_seconds or 5.0, 5.0, self._options.exit_idle_s / 2 or 5.0)
        while True:
            await asyncio.sleep(period_s)
            self._notifier.alive()
            self._journal.retry()
            offset_ns = time.time_ns() - time.monotonic_ns()
            if abs(offset_ns - self._clock_offset_ns) > CLOCK_STEP_NS:
                self._books.report("clock_stepped", None, f"by {offset_ns - self._clock_offset_ns} ns")
                self._books.close_interval()
            self._clock_offset_ns = offset_ns
            await self._mps.stop_unused()
            self._exit_if_idle()

    def _exit_if_idle(self) -> None:
        now_s = time.monotonic()
        if self._dispatcher.state.sessions or self._dispatcher.state.jobs:
            self._idle_since_s = now_s
        elif self._options.exit_idle_s and now_s - self._idle_since_s > self._options.exit_idle_s:
            self._log.info("nobody was here for a while: leaving", seconds=self._options.exit_idle_s)
            self._stop.set()

    # What the parts ask for

    def _end_session(self, facts: SessionFacts, why: str) -> None:
        self._executor.end(facts, why)

    def _watch_soon(self) -> None:
        self._sampler.watch_soon()

    def _welcome(self, live: LiveSession, facts: SessionFacts) -> None:
        self._desk.welcome(live, facts)

    def _watch_contact(self, session: SessionId) -> None:
        self._server.watch_contact(session)

    def _connection_limits(self) -> Limits:
        daemon = self._rules.settings.daemon
        return Limits(daemon.user_sessions_max, daemon.user_requests_per_s, daemon.hello_timeout_ns / 1e9)

    async def _announce(self, task: TaskRequest) -> None:
        await self._markers.announce(task)

    async def _complete(self, request: JobStart, patience_s: float) -> JobStart:
        return await self._markers.complete(request, patience_s)

    async def _environment(self, device: DeviceId, uid: int) -> dict[str, str]:
        given = self._rules.settings.daemon.adaptor_dir
        adaptor_dir = Path(given) if given else Path(__file__).resolve().parents[1] / "job"
        socket_path, is_preloaded = Path(self._rules.settings.daemon.socket), uid in self._server.unhooked_uids
        found = adaptor_environment(socket_path, adaptor_dir, self._devices[device], is_preloaded=is_preloaded)
        return {**found, **await self._mps.environment(device, uid)}

    async def _find_profile(self, user: str, signature: str, model: str) -> Recorded | None:
        return await self._ledger.find_profile(f"local@{self._node}", user, signature, model)

    def _reconcile_interval_s(self) -> float:
        return self._rules.settings.slurm.reconcile_interval_ns / 1e9

    async def _measure_process(self, device: DeviceId, pid: int) -> int:
        return await self._sampler.measure(device, pid)

    async def _wait_gathered(self) -> None:
        await self._gathered.wait()

    def _wake_at(self, command: commands.WakeAt) -> None:
        loop = asyncio.get_running_loop()
        previous = self._wakes.pop(command.device, None)
        if previous is not None:
            previous.cancel()
        # The event loop runs on the same monotonic clock.
        self._wakes[command.device] = loop.call_at(command.at_ns / 1e9, self._tick, command.device)

    def _tick(self, device: DeviceId) -> None:
        self._wakes.pop(device, None)
        self._dispatcher.submit(events.Ticked(device))

    def _report(self, kind: str, facts: SessionFacts, detail: str) -> None:
        self._log.warning(kind, job=facts.job, session=facts.session, device=facts.device, detail=detail)
        self._books.report(kind, facts, detail)

    def _on_death(self, session: SessionId) -> None:
        if not self._recovery.on_death(session):
            facts, live = self._dispatcher.state.sessions.get(session), self._roster.get(session)
            # Also after BYE: the last report of a short job is its only complete one.
            if facts is not None and live is not None and live.profile is not None:
                self._measure(live, facts, live.profile)
            self._server.on_death(session)

    def _on_profile(self, live: LiveSession, facts: SessionFacts, profile: ProfileReport) -> None:
        live.profile = profile
        now_ns = time.monotonic_ns()
        if now_ns - live.recorded_ns > MEASURE_INTERVAL_NS:
            live.recorded_ns = now_ns
            self._measure(live, facts, profile)

    def _measure(self, live: LiveSession, facts: SessionFacts, profile: ProfileReport) -> None:
        neighbours = [one for one in self._dispatcher.state.sessions.values() if one.device == facts.device]
        self._books.measured(live, facts, profile, is_alone=len(neighbours) == 1)
        live.profile = None
        self._ledger.flush_soon()

    def _on_gathered(self) -> None:
        self._gathered.set()
        self._sampler.recall_lost()
        for device in self._devices:
            self._dispatcher.submit(events.Ticked(device))
        if self._recovery.adopted_count:
            self._log.info("sessions taken back", count=self._recovery.adopted_count)
        self._server.greet_early()

    def _node_status(self, viewer: Viewer, job: str) -> NodeStatus:
        known = self._jobs.known_name(job) or job
        return NodeStatus(
            node=self._node,
            cluster=self._rules.settings.cluster.name,
            now_utc_ns=time.time_ns(),
            daemon=DaemonStatus(
                version=self._version,
                pid=os.getpid(),
                started_utc_ns=self._started_utc_ns,
                event_count=self._dispatcher.event_count,
                journal_fault=self._journal.fault,
                spool_records=self._ledger.spool.record_count,
                spool_dropped=sum(self._ledger.spool.dropped.values()),
                is_database_up=self._ledger.is_up,
                database_error=self._ledger.last_error if viewer.is_operator else "",
                is_gathering=self._recovery.is_gathering,
                reload_error=self._rules.reload_error if viewer.is_operator else "",
            ),
            devices=self._view.devices(),
            lanes=self._view.lanes(viewer),
            sessions=self._view.sessions(viewer, known),
        )


def _subdirectory(parent: Path, name: str) -> Path:
    path = parent / name
    prepare_directory(path, 0o700)
    return path
