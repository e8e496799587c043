"""Problems in a configuration file, each with its line. A load collects all of them before it answers."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

# Without a limit, a file of junk would cost minutes of nearest-key search.
FINDING_COUNT_MAX = 1000
SHOWN_TEXT_LENGTH_MAX = 60


class Place(NamedTuple):
    """A line of a configuration file, counted from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Finding:
    """One problem: its line, its key, the reason, and the nearest correct spelling."""

    place: Place
    key: str
    problem: str
    nearest: str | None = None

    def __str__(self) -> str:
        hint = f"; did you mean {self.nearest}?" if self.nearest else ""
        subject = f"{self.key}: " if self.key else ""
        return f"{self.place}: {subject}{self.problem}{hint}"


@dataclass
class Findings:
    """Collects findings up to a limit. The last finding says that the limit was reached."""

    # A dictionary keeps the order and drops duplicates: a line that breaks a rule on many nodes is one finding.
    found: dict[Finding, None] = field(default_factory=dict)
    # Keys that are misspelt or have an invalid value: a contradiction with their default would mislead.
    suspects: set[str] = field(default_factory=set)

    def add(self, place: Place, key: str, problem: str, nearest: str | None = None) -> None:
        """Add one finding, unless it is there already or the limit is reached."""
        if len(self.found) < FINDING_COUNT_MAX - 1:
            self.found[Finding(place, shown(key), problem, nearest)] = None
        elif not self.is_full:
            self.found[Finding(place, "", "too many findings; fix these first to see the rest")] = None

    def contradict(self, place: Place, key: str, problem: str, *others: str) -> None:
        """Report that `key` contradicts `others`, unless one of them is suspect."""
        if self.suspects.isdisjoint((key, *others)):
            self.add(place, key, problem)

    @property
    def is_full(self) -> bool:
        """Whether further findings would be dropped."""
        return len(self.found) >= FINDING_COUNT_MAX


def nearest_of(text: str, names: Iterable[str]) -> str | None:
    """The spelling closest to `text`, in any case, or None if none is close."""
    by_folded = {name.casefold(): name for name in names}
    folded = text[:SHOWN_TEXT_LENGTH_MAX].casefold()
    matches = difflib.get_close_matches(folded, list(by_folded), n=1, cutoff=0.6)
    return by_folded[matches[0]] if matches else None


def shown(text: str) -> str:
    """`text` made printable and short enough for one line of a terminal."""
    clean = "".join(character if character.isprintable() else "?" for character in text)
    return clean if len(clean) <= SHOWN_TEXT_LENGTH_MAX else clean[: SHOWN_TEXT_LENGTH_MAX - 3] + "..."
