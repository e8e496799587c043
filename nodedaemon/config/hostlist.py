"""Expands and compresses Slurm's host lists such as `gpu[01-04,7],login1`, by the grammar of NodeName in slurm.conf.

Expansion is bounded: a range of a billion nodes is a typo.
"""

import re
from collections.abc import Iterable
from itertools import pairwise, product

# Slurm's own bound on one list.
NAME_COUNT_MAX = 65_536

_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\],]+)")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_NUMBERED = re.compile(r"(.*?)([0-9]{1,18})")


def expand(text: str) -> tuple[str, ...]:
    """The names that `text` stands for, in its order. Raises ValueError with the reason if it is invalid."""
    names: list[str] = []
    for entry in _split(text):
        names += _expand_entry(entry, NAME_COUNT_MAX - len(names))
    duplicates = {first for first, second in pairwise(sorted(names)) if first == second}
    if duplicates:
        raise ValueError(f"{min(duplicates)} is named twice")
    return tuple(names)


def compress(names: Iterable[str]) -> str:
    """A short, sorted host list for `names`; `expand` returns the same names."""
    groups: dict[tuple[str, int], list[int]] = {}
    plain: list[str] = []
    for name in sorted(set(names)):
        match = _NUMBERED.fullmatch(name)
        if match is None:
            plain.append(name)
            continue
        prefix, digits = match.groups()
        # gpu1 and gpu01 are different names, so each width is a separate group.
        groups.setdefault((prefix, len(digits)), []).append(int(digits))
    return ",".join(plain + [_compress_group(prefix, width, numbers) for (prefix, width), numbers in groups.items()])


def _compress_group(prefix: str, width: int, numbers: list[int]) -> str:
    numbers.sort()
    if len(numbers) == 1:
        return f"{prefix}{numbers[0]:0{width}}"
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    inside = ",".join("-".join(f"{end:0{width}}" for end in run) for run in runs)
    return f"{prefix}[{inside}]"


def _split(text: str) -> list[str]:
    entries, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += {"[": 1, "]": -1}.get(character, 0)
        if depth not in (0, 1):
            raise ValueError("brackets do not match")
        if character == "," and depth == 0:
            entries.append(text[start:position])
            start = position + 1
    entries.append(text[start:])
    if depth:
        raise ValueError("a bracket is not closed")
    if not all(entries):
        raise ValueError("a name is empty")
    return entries


def _expand_entry(entry: str, room: int) -> list[str]:
    choices: list[list[str]] = []
    for match in _PART.finditer(entry):
        inside, plain = match.groups()
        choices.append([plain] if plain is not None else _expand_ranges(inside, room))
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > room:
        raise ValueError(f"it stands for more than {NAME_COUNT_MAX} names")
    names = ["".join(parts) for parts in product(*choices)]
    if not all(_NAME.fullmatch(name) for name in names):
        raise ValueError("a name may contain only letters, digits, dots, dashes and underscores")
    return names


def _expand_ranges(inside: str, room: int) -> list[str]:
    numbers: list[str] = []
    for item in inside.split(","):
        match = _RANGE.fullmatch(item)
        if match is None:
            raise ValueError(f"[{inside}] is not a list of numbers and ranges such as [01-16,20]")
        low_text, high_text = match.group(1), match.group(2) or match.group(1)
        low, high = int(low_text), int(high_text)
        if high < low:
            raise ValueError(f"the range {item} runs backwards")
        if high - low >= room - len(numbers):
            raise ValueError(f"it stands for more than {NAME_COUNT_MAX} names")
        numbers += [f"{number:0{len(low_text)}}" for number in range(low, high + 1)]
    return numbers
