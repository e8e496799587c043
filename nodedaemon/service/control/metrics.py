"""The metrics of salusd for Prometheus: bounded labels, base units, no job ids.

Counters are updated with each event; gauges are computed from the current status at each scrape. Details of jobs are in
the database.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nodedaemon.core import commands, events
from nodedaemon.core.commands import Command
from nodedaemon.core.events import Event
from nodedaemon.core.types import SessionId
from nodedaemon.service.control.access import Caller
from nodedaemon.service.control.administration import Administration
from nodedaemon.service.control.status import StatusView
from nodedaemon.service.journal.state import ShellState
from nodedaemon.service.usage.ledger import Ledger
from nodedaemon.service.usage.recorder import UsageRecorder
from nodedaemon.wire.control import NodeStatus

WAIT_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class EventMetrics:
    """Counts events and commands as the dispatcher handles them."""

    def __init__(self, state: ShellState, registry: CollectorRegistry) -> None:
        self._state = state
        self._granted_ns: dict[SessionId, int] = {}
        label = ["uuid"]
        self._iterations = Counter("salus_iterations", "Iterations finished.", label, registry=registry)
        self._busy = Counter("salus_lane_busy_seconds", "Time in which a lane had a holder.", label, registry=registry)
        self._handovers = Counter("salus_handovers", "Direct hand-overs.", label, registry=registry)
        self._admissions = Counter("salus_admissions", "Sessions admitted on the node.", label, registry=registry)
        self._ended = Counter("salus_sessions_ended", "Sessions that Salus ended.", label, registry=registry)
        self._waits = Histogram(
            "salus_iteration_wait_seconds",
            "Time from requesting a grant to receiving it.",
            label,
            buckets=WAIT_BUCKETS_S,
            registry=registry,
        )

    def watch(self, event: Event, made: list[Command], now_ns: int) -> None:
        match event:
            case events.GrantReturned():
                self._on_return(event, made, now_ns)
            case events.SessionLeft():
                self._granted_ns.pop(event.session, None)
            case _:
                pass
        for command in made:
            match command:
                case commands.Grant():
                    self._on_grant(command.session, now_ns)
                case commands.AdmitSession():
                    self._admissions.labels(self._state.sessions[command.session].device).inc()
                case commands.EndSession():
                    self._ended.labels(self._state.sessions[command.session].device).inc()
                case _:
                    pass

    def _on_grant(self, session: SessionId, now_ns: int) -> None:
        facts = self._state.sessions.get(session)
        if facts is None or session in self._granted_ns:
            return
        self._granted_ns[session] = now_ns
        self._waits.labels(facts.device).observe(max(0, now_ns - facts.view.wanted_ns) / 1e9)

    def _on_return(self, event: events.GrantReturned, made: list[Command], now_ns: int) -> None:
        facts = self._state.sessions.get(event.session)
        if facts is None or not facts.has_returned(made):
            return
        started_ns = self._granted_ns.pop(event.session, None)
        if started_ns is None:
            return
        self._busy.labels(facts.device).inc((now_ns - started_ns) / 1e9)
        self._iterations.labels(facts.device).inc(event.iteration_count)
        if event.handed_over is not None:
            self._handovers.labels(facts.device).inc()
            # The engine sends no `Grant` for the successor, because it runs already.
            successor = self._state.engine.holder(facts.device, event.handed_over)
            if successor is not None:
                self._on_grant(successor.id, now_ns)


class NodeCollector(Collector):
    """Gauges from the current status."""

    def __init__(
        self, status: StatusView, ledger: Ledger, recorder: UsageRecorder, administration: Administration
    ) -> None:
        self._status = status
        self._ledger = ledger
        self._recorder = recorder
        self._administration = administration

    def collect(self) -> Iterator[Metric]:
        status = self._status.status(Caller.daemon_itself())
        yield from self._devices(status)
        yield from self._lanes(status)
        daemon = status.daemon
        yield _gauge("salus_spool_records", "Records that wait for the database.", daemon.spool_records)
        yield _gauge("salus_db_up", "1 while the database accepts records.", int(daemon.is_database_up))
        yield _gauge("salus_journal_up", "1 while the journal accepts events.", int(not daemon.journal_fault))
        yield _gauge(
            "salus_config_last_reload_success_timestamp_seconds",
            "When the current configuration was loaded; 0 after a failed reload.",
            0.0 if daemon.reload_error else self._administration.reload_utc_s,
        )
        build = GaugeMetricFamily("salus_build_info", "This release.", labels=["version", "node"])
        build.add_metric([daemon.version, status.node], 1)
        yield build
        dropped = CounterMetricFamily("salus_spool_dropped", "Dropped records, by value class.", labels=["value"])
        for value, count in self._ledger.spool.dropped.items():
            dropped.add_metric([value.name.lower()], count)
        yield dropped
        happened = CounterMetricFamily("salus_happenings", "Overruns, hangs, ended sessions etc.", labels=["kind"])
        for kind, count in self._recorder.event_counts.items():
            happened.add_metric([kind], count)
        yield happened

    @staticmethod
    def _devices(status: NodeStatus) -> Iterator[Metric]:
        labels = ["node", "gpu", "uuid", "model"]
        memory = GaugeMetricFamily("salus_gpu_memory_bytes", "Memory of a device by use.", labels=[*labels, "kind"])
        jain = GaugeMetricFamily("salus_fairness_jain_ratio", "Jain's index of service / weight.", labels=labels)
        up = GaugeMetricFamily("salus_gpu_up", "0 while the device is lost or drained.", labels=labels)
        policy = GaugeMetricFamily("salus_policy_info", "The active policy.", labels=[*labels, "policy"])
        for device in status.devices:
            place = [status.node, str(device.index), device.device, device.model]
            kinds = {
                "persistent": device.persistent_bytes,
                "ephemeral": device.lane_bytes,
                "free": device.free_bytes,
                "foreign": device.foreign_bytes,
            }
            for kind, value in kinds.items():
                if value is not None:
                    memory.add_metric([*place, kind], value)
            if device.jain is not None:
                jain.add_metric(place, device.jain)
            up.add_metric(place, int(device.lost_reason is None and not device.is_drained))
            policy.add_metric([*place, device.policy], 1)
        yield from (memory, jain, up, policy)

    @staticmethod
    def _lanes(status: NodeStatus) -> Iterator[Metric]:
        for name, text, members in (
            ("salus_lanes", "Lanes by state.", status.lanes),
            ("salus_sessions", "Sessions by state.", status.sessions),
        ):
            gauge = GaugeMetricFamily(name, text, labels=["uuid", "state"])
            for (device, state), count in Tally((member.device, member.state) for member in members).items():
                gauge.add_metric([device, state], count)
            yield gauge


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
