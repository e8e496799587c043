"""Formats a job's page: figures, bars, and advice that names the line of the job script to change.

Advice appears only if following it would have helped this run.
"""

from collections.abc import Iterator

from accounting.reports.values import JobPage
from cli.output.moments import format_duration, format_moment
from cli.output.units import counted
from nodedaemon.core.types import GIB, MIB, MINUTE_NS
from nodedaemon.wire.text import visible

BAR_WIDTH = 30

# Beyond these limits, the job wasted device time or waited too long; jobstats uses the same limits.
LOW_EFFICIENCY = 0.25
LONG_GATE_WAIT = 0.25


def page_lines(page: JobPage, moment_style: str = "standard") -> list[str]:
    """The page of one run."""
    lines = [*_head(page, moment_style), "", *_times(page), *_memory(page), *_admission(page), *_notes(page)]
    return [visible(line) for line in lines]


def bar(part: float | None) -> str:
    """A bar for a fraction; empty, with n/a, if it is unknown."""
    if part is None:
        return f"[{' ' * BAR_WIDTH}]  n/a"
    filled = round(max(0.0, min(1.0, part)) * BAR_WIDTH)
    return f"[{'|' * filled}{' ' * (BAR_WIDTH - filled)}] {part:4.0%}"


def size(count: int) -> str:
    """Bytes in GiB or MiB."""
    return f"{count / GIB:.2f} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"


def _head(page: JobPage, style: str) -> Iterator[str]:
    restart = f"  restart {page.restart_count}" if page.restart_count else ""
    yield f"Salus job {page.job}  cluster {page.cluster}{restart}  {page.state or 'UNKNOWN'}"
    rows = [
        ("Name", page.name),
        ("User/Account", f"{page.user}/{page.account}"),
        ("Partition/QOS", f"{page.partition}/{page.qos}" if page.qos else page.partition),
        ("Submitted", format_moment(page.submit_utc_ns, style)),
        ("Started", format_moment(page.start_utc_ns, style)),
        ("Ended", format_moment(page.end_utc_ns, style) if page.end_utc_ns else "not yet"),
        ("Waited", format_duration(page.wait_ns) if page.wait_ns is not None else "n/a"),
        ("Signature", page.signature or "none"),
    ]
    for name, value in rows:
        yield f"  {name + ':':<15}{value}"
    for device in page.devices:
        yield f"  {'Device:':<15}{device.node} {device.device} ({device.device_model or 'unknown model'})"


def _times(page: JobPage) -> Iterator[str]:
    m = page.measures
    yield "Device time"
    rows = [
        ("Held", format_duration(m.held_ns), f"elapsed x {page.device_count}"),
        ("Occupied", format_duration(m.occupied_ns), f"{bar(_part(m.occupied_ns, m.held_ns))} of held"),
        ("Busy", format_duration(m.busy_ns), f"{bar(m.efficiency)} of occupied (efficiency)"),
        ("Gate wait", format_duration(m.gate_wait_ns), f"{bar(_part(m.gate_wait_ns, m.held_ns))} of held"),
    ]
    if m.suspended_ns:
        rows.append(("Suspended", format_duration(m.suspended_ns), "not part of held"))
    alone = format_duration(m.alone_ns) if m.alone_ns is not None else "n/a"
    gain = f"sharing gain {m.sharing_gain:.2f}x" if m.sharing_gain is not None else "solo iteration time unknown"
    slowdown = f", slowdown {m.slowdown:.2f}x" if m.slowdown is not None else ""
    rows.append(("Alone", alone, gain + slowdown))
    for name, value, text in rows:
        yield f"  {name:<10}{value:>12}  {text}"
    counts = ((m.iteration_count, "iteration"), (m.handover_count, "hand-over"), (page.session_count, "session"))
    yield "  " + ", ".join(counted(count, noun) for count, noun in counts)


def _memory(page: JobPage) -> Iterator[str]:
    if page.devices:
        yield "Peak memory"
    for device in page.devices:
        for name, count in (("Persistent", device.persistent_bytes_max), ("Ephemeral", device.ephemeral_bytes_max)):
            yield f"  {name:<10}{size(count):>12}  {bar(_part(count, device.capacity_bytes))} of {device.device}"


def _admission(page: JobPage) -> Iterator[str]:
    admission = page.admission
    if admission is None:
        return
    yield "Admission"
    yield (
        f"  {admission.decision} by {admission.basis}: persistent {size(admission.persistent_bytes)}, "
        f"ephemeral {size(admission.ephemeral_bytes)}, charge {size(admission.charge_bytes)} "
        f"({admission.charge_shards} shards)"
    )
    for reason in admission.reasons:
        yield f"  - {reason}"


def _notes(page: JobPage) -> Iterator[str]:
    found = list(notes(page))
    if found:
        yield "Notes"
    for note in found:
        yield f"  * {note}"


def notes(page: JobPage) -> Iterator[str]:
    """Advice that would have helped this run."""
    m = page.measures
    efficiency = m.efficiency
    if efficiency is not None and efficiency < LOW_EFFICIENCY and m.outside_ns > m.busy_ns:
        yield (
            f"The device ran iterations for only {efficiency:.0%} of the time that this job occupied it. The job spent "
            "the rest outside iterations, often loading input. More cores may help: #SBATCH --cpus-per-task=8"
        )
    if m.held_ns and m.gate_wait_ns > LONG_GATE_WAIT * m.held_ns:
        yield (
            f"The job waited {m.gate_wait_ns / m.held_ns:.0%} of the time for its turn. To avoid this: "
            "#SBATCH --salus-class=high (if your QOS allows it), or --gres=gpu:1 for a whole device"
        )
    if page.state == "TIMEOUT" and m.gate_wait_ns:
        minutes = -(-(m.held_ns // max(1, page.device_count) + m.gate_wait_ns) // MINUTE_NS)
        limit = format_duration(minutes * MINUTE_NS)
        yield f"The job reached its time limit while sharing. Allow for waiting: #SBATCH --time={limit}"
    peak = [(d.persistent_bytes_max, d.ephemeral_bytes_max) for d in page.devices]
    persistent, ephemeral = (max(values) for values in zip(*peak, strict=True)) if peak else (0, 0)
    if any(event.kind == "overrun" for event in page.events):
        yield (
            "The job needed more memory than its profile says. Declare what it needs: "
            f"#SBATCH --salus-mem={-(-persistent // MIB)}M,{-(-ephemeral // MIB)}M"
        )
    elif page.admission is not None and page.admission.basis in ("exclusive", "requeue") and persistent:
        yield (
            "The job was unknown and ran alone. It now has a profile. To keep it when the script changes: "
            f"#SBATCH --salus-profile={page.name or 'NAME'}"
        )
    if page.profile is not None and page.profile.stale_reason:
        yield (
            f"The job's profile is stale ({page.profile.stale_reason}). To measure again: salus profiles forget "
            f"{page.signature}. To separate variants: #SBATCH --salus-profile=NAME"
        )
    if any(event.kind == "ungated" for event in page.events):
        yield "Several sessions used the device at the same time. The job was not gated and was charged for its peak."


def _part(count: int, whole: int) -> float | None:
    return count / whole if whole else None
