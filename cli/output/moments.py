"""Parses and prints times as sacct does: `-S`, `-E`, SLURM_TIME_FORMAT, and durations.

sacct(1) documents the format. Times without a zone are local; inside the project a moment is UTC in nanoseconds.
"""

import re
from datetime import datetime, timedelta

from nodedaemon.core.errors import RequestError
from nodedaemon.core.types import SECOND_NS

STANDARD_FORMAT = "%Y-%m-%dT%H:%M:%S"

_HOURS = {"today": 0, "midnight": 0, "elevenses": 11, "noon": 12, "fika": 15, "teatime": 16}
_UNITS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86_400, "weeks": 604_800}
_NOW = re.compile(r"now(?:\s*([+-])\s*(\d{1,10})\s*([a-z]*))?")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?\s*(am|pm)?")
_DATES = (
    re.compile(r"(?P<year>\d{4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"),
    re.compile(r"(?P<month>\d{2})(?P<day>\d{2})(?P<year>\d{2})?"),
    re.compile(r"(?P<month>\d{1,2})[/.](?P<day>\d{1,2})(?:[/.](?P<year>\d{4}|\d{2}))?"),
)
_EPOCH = re.compile(r"(?:uts=|@)(\d{1,12})")


def parse_moment(text: str, now: datetime) -> int:
    """The UTC nanoseconds that `text` means at the local time `now`; RequestError for an invalid format."""
    lowered = text.strip().lower()
    moment = _epoch(lowered) or _relative(lowered, now) or _absolute(lowered, now)
    if moment is None:
        raise RequestError(
            f"invalid time {text!r}: use one of HH:MM[:SS], MMDD[YY], MM/DD[/YY], YYYY-MM-DD[THH:MM[:SS]], "
            "today, midnight, noon, elevenses, fika, teatime, now[+-N[seconds|minutes|hours|days|weeks]]; see sacct(1)"
        )
    return int(moment.timestamp()) * SECOND_NS


def format_moment(utc_ns: int | None, style: str = "standard", now: datetime | None = None) -> str:
    """A moment in the style of SLURM_TIME_FORMAT: standard, relative, or a strftime format."""
    if utc_ns is None:
        return "Unknown"
    moment = datetime.fromtimestamp(utc_ns // SECOND_NS).astimezone()
    if style in ("", "standard"):
        return moment.strftime(STANDARD_FORMAT)
    if style == "relative":
        return _relative_text(moment, now or datetime.now().astimezone())
    return moment.strftime(style)


def format_duration(span_ns: int) -> str:
    """[D-]HH:MM:SS, as sacct prints Elapsed."""
    sign, whole = ("-", -span_ns) if span_ns < 0 else ("", span_ns)
    days, rest = divmod(whole // SECOND_NS, 86_400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{sign}{days}-{clock}" if days else f"{sign}{clock}"


def _epoch(text: str) -> datetime | None:
    match = _EPOCH.fullmatch(text)
    return datetime.fromtimestamp(int(match[1])).astimezone() if match else None


def _relative(text: str, now: datetime) -> datetime | None:
    match = _NOW.fullmatch(text)
    if match is None:
        return None
    sign, count, unit = match.groups()
    if sign is None:
        return now
    # Slurm accepts any prefix of a unit: 2h, 2hour, 2hours.
    seconds = next((size for word, size in _UNITS.items() if word.startswith(unit)), None) if unit else 1
    if seconds is None:
        return None
    try:
        return now + timedelta(seconds=int(count) * seconds * (1 if sign == "+" else -1))
    except OverflowError:
        return None


def _absolute(text: str, now: datetime) -> datetime | None:
    if text in _HOURS:
        return now.replace(hour=_HOURS[text], minute=0, second=0, microsecond=0)
    clock = _clock(text)
    if clock is not None:
        return _at(now.year, now.month, now.day, clock)
    for pattern in _DATES:
        match = pattern.match(text)
        if match is None:
            continue
        rest = text[match.end() :]
        clock = (0, 0, 0) if rest == "" else _clock(rest[1:].strip()) if rest[0] in "t- " else None
        if clock is not None:
            year = int(match["year"]) if match["year"] else now.year
            year = year + 2000 if year < 100 else year
            return _at(year, int(match["month"]), int(match["day"]), clock)
    return None


def _clock(text: str) -> tuple[int, int, int] | None:
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    hour, minute, second = int(match[1]), int(match[2]), int(match[3] or 0)
    if match[4]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if match[4] == "pm" else 0)
    return (hour, minute, second) if hour < 24 and minute < 60 and second < 60 else None


def _at(year: int, month: int, day: int, clock: tuple[int, int, int]) -> datetime | None:
    try:
        # Convert from naive local time, so that the UTC offset of that day applies, not today's.
        return datetime(year, month, day, *clock).astimezone()
    except (ValueError, OverflowError, OSError):
        return None


def _relative_text(moment: datetime, now: datetime) -> str:
    days = (moment.date() - now.date()).days
    if days == 0:
        return moment.strftime("%H:%M:%S")
    if days == -1:
        return moment.strftime("Ystday %H:%M")
    if days == 1:
        return moment.strftime("Tomorr %H:%M")
    if -7 < days < 7:
        return moment.strftime("%a %H:%M")
    return moment.strftime("%-d %b %H:%M") if abs(days) < 330 else moment.strftime("%-d %b %Y")
