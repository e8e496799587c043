"""The Prometheus metrics of salus-admitd."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from accounting.records import AdmissionRecord


class AdmissionMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.decisions = Counter(
            "salus_admission_decisions", "Admission decisions.", ["decision", "basis"], registry=self.registry
        )
        self.seconds = Histogram(
            "salus_admission_seconds", "Time to answer a submission.", registry=self.registry,
            buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5),
        )  # fmt: skip
        self.over_limit = Counter(
            "salus_admission_over_limit", "Requests beyond a user's limit.", ["door"], registry=self.registry
        )
        self.refused_peers = Counter("salus_admission_refused_peers", "Connections refused.", registry=self.registry)

    def export(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Export a value that is read at each scrape."""
        Gauge(f"salus_admission_{name}", text, registry=self.registry).set_function(read)

    def count_decision(self, record: AdmissionRecord) -> None:
        self.decisions.labels(record.decision, record.basis).inc()
