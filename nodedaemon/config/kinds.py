"""The types of value that a key may have: how to parse, write and name each.

`parse` raises ValueError, and nothing else, with a reason that helps the admin correct the file. Bytes and
nanoseconds are integers. Suffixes are binary, as in Slurm: 1K is 1024.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from nodedaemon.config.finding import nearest_of, shown
from nodedaemon.core.types import DAY_NS, HOUR_NS, MICROSECOND_NS, MILLISECOND_NS, MINUTE_NS, SECOND_NS

T = TypeVar("T")

_SIZE = re.compile(r"([0-9]{1,18})(?:([KMGTP])(?:i?B)?|B)?", re.IGNORECASE)
_CLOCK = re.compile(r"(?:([0-9]{1,6})-)?([0-9]{1,9})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?")
_SPAN = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,9}))?(us|ms|s)", re.IGNORECASE)
_PERCENT = re.compile(r"([0-9]{1,4})%")
_COUNT = re.compile(r"[0-9]{1,18}")
_WORD = re.compile(r'[^\s,"#\\]+')
_SIZE_SHIFT = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50}
_SPAN_NS = {"us": MICROSECOND_NS, "ms": MILLISECOND_NS, "s": SECOND_NS}


class Kind(Protocol[T]):
    """The type of a key's value."""

    @property
    def type_name(self) -> str:
        """The name of the type in the manual: `size`, `yes or no`."""

    def parse(self, text: str) -> T: ...

    def write(self, value: T) -> str: ...


def _wrong(text: str, expected: str) -> ValueError:
    """An error that says what `text` looks like: most wrong values would be right for another type."""
    if not text:
        return ValueError(f"has no value; expected {expected}")
    found = "not understood"
    if _SIZE.fullmatch(text) and not text.isdigit():
        found = "a size"
    elif _SPAN.fullmatch(text) or (":" in text and _CLOCK.fullmatch(text)):
        found = "a time"
    elif _PERCENT.fullmatch(text):
        found = "a percentage"
    return ValueError(f"{shown(text)!r} is {found}; expected {expected}")


def _check_characters(text: str) -> str:
    # The syntax cannot express a quote or a backslash, so such a value could not be written back.
    if not text.isprintable() or '"' in text or "\\" in text:
        raise ValueError("contains a quote, a backslash or an unprintable character")
    return text


def _check_range(value: int, low: int, high: int, write: Callable[[int], str]) -> int:
    if not low <= value <= high:
        raise ValueError(f"is out of range; expected {write(low)} to {write(high)}")
    return value


@dataclass(frozen=True)
class Size:
    """Bytes."""

    low_bytes: int = 0
    high_bytes: int = 1 << 60
    type_name: str = "size"

    def parse(self, text: str) -> int:
        match = _SIZE.fullmatch(text)
        if match is None:
            raise _wrong(text, "a size in whole units such as 16M or 10G")
        size_bytes = int(match.group(1)) << _SIZE_SHIFT[(match.group(2) or "").upper()]
        return _check_range(size_bytes, self.low_bytes, self.high_bytes, self.write)

    def write(self, value: int) -> str:
        for suffix, shift in reversed(_SIZE_SHIFT.items()):
            if value and shift and value % (1 << shift) == 0:
                return f"{value >> shift}{suffix}"
        return str(value)


@dataclass(frozen=True)
class SizeOrAuto:
    """Bytes, or None for `auto`."""

    low_bytes: int = 0
    type_name: str = "size or auto"

    def parse(self, text: str) -> int | None:
        if text.casefold() == "auto":
            return None
        try:
            return Size(self.low_bytes).parse(text)
        except ValueError as error:
            raise ValueError(f"{error}, or auto") from None

    def write(self, value: int | None) -> str:
        return "auto" if value is None else Size().write(value)


@dataclass(frozen=True)
class Time:
    """Nanoseconds. A bare number is seconds."""

    low_ns: int = 0
    high_ns: int = 3650 * DAY_NS
    type_name: str = "time"

    def parse(self, text: str) -> int:
        span_ns = self._parse_span(text)
        if span_ns is None:
            span_ns = self._parse_clock(text)
        if span_ns is None:
            raise _wrong(text, "a time such as 500ms, 30, 5:00, 12:00:00 or 7-00:00:00")
        return _check_range(span_ns, self.low_ns, self.high_ns, self.write)

    def write(self, value: int) -> str:
        if value % SECOND_NS:
            for suffix, unit_ns in (("ms", MILLISECOND_NS), ("us", MICROSECOND_NS)):
                if value % unit_ns == 0:
                    return f"{value // unit_ns}{suffix}"
            return f"{value // SECOND_NS}.{value % SECOND_NS:09}s"
        if value < MINUTE_NS:
            return f"{value // SECOND_NS}s"
        days, seconds = divmod(value // SECOND_NS, 86_400)
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        return f"{days}-{clock}" if days else clock

    @staticmethod
    def _parse_span(text: str) -> int | None:
        match = _SPAN.fullmatch(text)
        if match is None:
            return None
        whole, part, suffix = match.groups()
        unit_ns = _SPAN_NS[suffix.lower()]
        # Digits below a nanosecond are ignored.
        return int(whole) * unit_ns + int((part or "0").ljust(9, "0")) * unit_ns // SECOND_NS

    @staticmethod
    def _parse_clock(text: str) -> int | None:
        match = _CLOCK.fullmatch(text)
        if match is None:
            return None
        days, *fields = match.groups()
        numbers = [int(number) for number in fields if number is not None]
        # As in Slurm: after D- the hours come first, else the last number is seconds.
        units_ns = (HOUR_NS, MINUTE_NS, SECOND_NS)
        start = 0 if days is not None else 3 - len(numbers)
        clock_ns = sum(number * unit_ns for number, unit_ns in zip(numbers, units_ns[start:], strict=False))
        return int(days or 0) * DAY_NS + clock_ns


@dataclass(frozen=True)
class Count:
    """A whole number."""

    low: int = 0
    high: int = 1_000_000_000
    type_name: str = "number"

    def parse(self, text: str) -> int:
        if not (_COUNT.fullmatch(text) and text.isascii()):
            raise _wrong(text, f"a whole number from {self.low} to {self.high}")
        return _check_range(int(text), self.low, self.high, self.write)

    def write(self, value: int) -> str:
        return str(value)


def port() -> Count:
    """A TCP port, 0 for none."""
    return Count(0, 65_535, type_name="port")


@dataclass(frozen=True)
class Percent:
    """A whole percentage. The sign is required, so that 10 is not mistaken for a factor."""

    high: int = 1000
    type_name: str = "percentage"

    def parse(self, text: str) -> int:
        match = _PERCENT.fullmatch(text)
        if match is None:
            raise _wrong(text, "a percentage such as 10%")
        return _check_range(int(match.group(1)), 0, self.high, self.write)

    def write(self, value: int) -> str:
        return f"{value}%"


@dataclass(frozen=True)
class YesNo:
    """A Boolean."""

    type_name: str = "yes or no"

    def parse(self, text: str) -> bool:
        for value, names in ((True, ("yes", "true", "on", "1")), (False, ("no", "false", "off", "0"))):
            if text.casefold() in names:
                return value
        raise _wrong(text, "yes or no")

    def write(self, value: bool) -> str:  # noqa: FBT001  the value is the subject, not a switch
        return "yes" if value else "no"


@dataclass(frozen=True)
class Choice(Generic[T]):
    """One of a few values, written by their names in any case: the members of an enumeration, or plain names."""

    members: Iterable[T]

    @property
    def type_name(self) -> str:
        return ", ".join(map(str, self.members))

    def parse(self, text: str) -> T:
        named = {str(member).casefold(): member for member in self.members}
        if text.casefold() in named:
            return named[text.casefold()]
        nearest = nearest_of(text, map(str, self.members))
        hint = f"; did you mean {nearest}?" if nearest else ""
        raise ValueError(f"{shown(text)!r} is not one of {self.type_name}{hint}")

    def write(self, value: T) -> str:
        return str(value)


@dataclass(frozen=True)
class Names:
    """A comma-separated list of names, which may be empty."""

    type_name: str = "comma-separated list"

    def parse(self, text: str) -> tuple[str, ...]:
        names = tuple(name.strip() for name in text.split(",")) if text else ()
        if not all(_WORD.fullmatch(name) and name.isprintable() for name in names):
            raise ValueError("a name in the list is empty, or contains a space, a quote or a backslash")
        if len(set(names)) != len(names):
            raise ValueError("a name is in the list twice")
        return names

    def write(self, value: tuple[str, ...]) -> str:
        return ",".join(value)


@dataclass(frozen=True)
class Numbers:
    """A comma-separated list of whole numbers and ranges, which may be empty: 0,2-3."""

    high: int = 4095
    type_name: str = "number list"

    def parse(self, text: str) -> tuple[int, ...]:
        numbers: list[int] = []
        for item in text.split(",") if text else ():
            low_text, _, high_text = item.partition("-")
            low = Count(0, self.high).parse(low_text)
            high = Count(0, self.high).parse(high_text) if "-" in item else low
            if high < low:
                raise ValueError(f"the range {item} runs backwards")
            numbers += range(low, high + 1)
        if len(set(numbers)) != len(numbers):
            raise ValueError("a number is in the list twice")
        return tuple(numbers)

    def write(self, value: tuple[int, ...]) -> str:
        return ",".join(map(str, value))


@dataclass(frozen=True)
class Text:
    """Any text on one line."""

    is_optional: bool = True
    type_name: str = "text"

    def parse(self, text: str) -> str:
        if not text and not self.is_optional:
            raise ValueError(f"has no value; expected {self.type_name}")
        return _check_characters(text)

    def write(self, value: str) -> str:
        return f'"{value}"' if " " in value or "#" in value else value


@dataclass(frozen=True)
class FilePath:
    """An absolute path. %c is the cluster, %n the node if the path may differ by node, %% a percent sign."""

    is_optional: bool = False
    has_node: bool = False
    # The address of a Unix socket holds 107 bytes and a terminating zero.
    is_socket: bool = False
    type_name: str = "path"

    def parse(self, text: str) -> str:
        if not text and self.is_optional:
            return text
        if not text.startswith("/"):
            raise _wrong(text, "an absolute path")
        _check_characters(text)
        allowed = ("c", "n") if self.has_node else ("c",)
        if any(not piece.startswith(allowed) for piece in text.replace("%%", "").split("%")[1:]):
            node = ", %n (node)" if self.has_node else ""
            raise ValueError(f"contains a percent sign that is not %c (cluster){node} or %%")
        if self.is_socket and len(text.encode()) > 107:
            raise ValueError("is longer than the 107 bytes that a socket's address holds")
        return text

    def write(self, value: str) -> str:
        return Text().write(value)
