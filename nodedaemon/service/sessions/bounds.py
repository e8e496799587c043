"""Limits what a session reports about itself to what it can have done in the time and on the device that salusd saw."""

from __future__ import annotations

import msgspec

from nodedaemon.service.journal.state import SessionFacts
from nodedaemon.wire.messages import ProfileReport

#: No iteration is shorter.
ITERATION_NS_MIN = 1_000

_SIZES = ("persistent_bytes", "ephemeral_bytes", "live_persistent_bytes", "live_ephemeral_bytes")


def bounded_count(count: int, facts: SessionFacts, now_ns: int) -> int:
    """The iterations under the session's current grant.

    They count from the time at which it asked for the grant. Its predecessor may have started it long before salusd
    learns of it.
    """
    return min(count, _count_in(now_ns - facts.view.wanted_ns))


def bounded_profile(report: ProfileReport, facts: SessionFacts, device_bytes: int, now_ns: int) -> ProfileReport:
    """The report with sizes that fit on the device. An iteration that is longer than the session lived is unknown."""
    age_ns = now_ns - facts.start_mono_ns
    return msgspec.structs.replace(
        report,
        **{name: min(getattr(report, name), device_bytes) for name in _SIZES},
        iteration_ns=report.iteration_ns if report.iteration_ns <= age_ns else 0,
        iteration_count=min(report.iteration_count, _count_in(age_ns)),
    )


def _count_in(span_ns: int) -> int:
    return max(0, span_ns) // ITERATION_NS_MIN + 1
