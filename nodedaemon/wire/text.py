"""Text of users on terminals and in logs.

Users choose the names of their jobs, and more. Raw control characters could move the cursor, hide or imitate other
lines, or reverse the order of the characters. JSON has escapes of its own. All other output uses `visible`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, MutableMapping
from typing import Any


def visible(text: str) -> str:
    """`text` on one line, with every character that is not printable as \\n, \\x1b or \\u2028."""
    return _escaped(text, lambda character: character.encode("unicode_escape").decode("ascii"))


def visible_lines(text: str) -> str:
    """The same for each line of a text that may have several."""
    return "\n".join(visible(line) for line in text.split("\n"))


def visible_json(document: str) -> str:
    """A JSON document in the same meaning, in which no character acts on a terminal."""
    # Such characters occur only in strings, where JSON allows an escape for any character.
    return "\n".join(_escaped(line, lambda character: json.dumps(character)[1:-1]) for line in document.split("\n"))


def visible_fields(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor for log formats without escapes of their own."""
    for name, value in line.items():
        if not isinstance(value, int | float | None):
            line[name] = visible(str(value))
    return line


def _escaped(text: str, escape: Callable[[str], str]) -> str:
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else escape(character) for character in text)
