"""Where a value came from and what is wrong with it. Findings are values: a load collects all of them, then answers."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

# A file of junk would otherwise cost minutes of nearest-key search and more lines than anybody reads.
FINDING_COUNT_MAX = 1000
SHOWN_TEXT_LENGTH_MAX = 60


@dataclass(frozen=True, order=True)
class Place:
    """A line of a configuration file, counted from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Finding:
    """One thing that keeps a file from being used: where, about which key, why, and the nearest right spelling."""

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
    """Collects findings up to a bound; the one that reaches the bound says so."""

    found: list[Finding] = field(default_factory=list)
    known: set[Finding] = field(default_factory=set)
    # Keys whose value is wrong or misspelt: what follows from their defaults would mislead.
    suspects: set[str] = field(default_factory=set)

    def add(self, place: Place, key: str, problem: str, nearest: str | None = None) -> None:
        """Note one finding, unless there are so many already that nobody would read it."""
        finding = Finding(place, shown(key), problem, nearest)
        # A rule that is broken on many nodes by one line is one finding.
        if self.is_full or finding in self.known:
            return
        if len(self.found) == FINDING_COUNT_MAX - 1:
            self.found.append(Finding(place, "", "too many findings; the rest is not shown, mend these first"))
            return
        self.found.append(finding)
        self.known.add(finding)

    def contradict(self, place: Place, key: str, problem: str, *others: str) -> None:
        """Note that `key` cannot be so beside `others`, unless one of them is suspect."""
        if self.suspects.isdisjoint((key, *others)):
            self.add(place, key, problem)

    @property
    def is_full(self) -> bool:
        """Whether further findings would be dropped, so that looking for more is wasted work."""
        return len(self.found) >= FINDING_COUNT_MAX


def nearest_of(text: str, known: Iterable[str]) -> str | None:
    """The known spelling closest to `text`, whatever its case, or None when nothing is close."""
    by_folded = {name.casefold(): name for name in known}
    folded = text[:SHOWN_TEXT_LENGTH_MAX].casefold()
    matches = difflib.get_close_matches(folded, list(by_folded), n=1, cutoff=0.6)
    return by_folded[matches[0]] if matches else None


def shown(text: str) -> str:
    """`text` fit for one line of a terminal: nothing unprintable, not too long."""
    clean = "".join(character if character.isprintable() else "?" for character in text)
    return clean if len(clean) <= SHOWN_TEXT_LENGTH_MAX else clean[: SHOWN_TEXT_LENGTH_MAX - 3] + "..."
