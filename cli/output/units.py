"""Formats sizes and times for people; scripts get base units from -P and --json."""

from nodedaemon.core.types import GIB, KIB, MIB, MILLISECOND_NS, SECOND_NS

_SIZES = (("T", 1024 * GIB), ("G", GIB), ("M", MIB), ("K", KIB))


def size_text(size_bytes: int | None) -> str:
    """A size in Slurm's short form, such as 1.5G, 512M or 0; empty if unknown."""
    if size_bytes is None:
        return ""
    for letter, unit in _SIZES:
        if abs(size_bytes) >= unit:
            value = size_bytes / unit
            return f"{value:.0f}{letter}" if value >= 100 or value == int(value) else f"{value:.1f}{letter}"
    return str(size_bytes)


def span_text(span_ns: int) -> str:
    """A duration such as 180us, 12ms, 4.5s, 03:20 or 1-02:03:04."""
    if span_ns < MILLISECOND_NS:
        return f"{span_ns // 1000}us"
    if span_ns < SECOND_NS:
        return f"{span_ns // MILLISECOND_NS}ms"
    if span_ns < 60 * SECOND_NS:
        return f"{span_ns / 1e9:.1f}s"
    minutes, seconds = divmod(span_ns // SECOND_NS, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{seconds:02}"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes:02}:{seconds:02}"


def percent_text(permille: int) -> str:
    return f"{permille / 10:.1f}%"


def counted(count: int, noun: str) -> str:
    """A number with its noun, in the singular for 1."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
