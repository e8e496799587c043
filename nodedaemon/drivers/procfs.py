"""Reads files of /proc and /sys as bytes, and splits them at newlines only.

Users choose many of the names in these files: of commands, mapped files, cgroups. The kernel escapes or forbids a
newline in them and nothing else. A reader that decodes the text, or splits it at Unicode line breaks, would take part
of such a name for a line of the kernel, or fail.
"""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")


def read_bytes(path: Path | str) -> bytes | None:
    """The contents of the file; None if its process is gone or we may not read it."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123  half the time of Path.read_bytes
            return file.read()
    except OSError:
        return None


def read_lines(path: Path | str) -> list[bytes]:
    """The lines of the file, without newlines; one empty line if its process is gone or we may not read it."""
    return (read_bytes(path) or b"").removesuffix(b"\n").split(b"\n")


def thread_directories(pid: int, proc: Path = PROC) -> list[Path]:
    """The directory of each thread, the main thread's first; empty when the process is gone."""
    try:
        return sorted((proc / str(pid) / "task").iterdir(), key=lambda entry: entry.name != str(pid))
    except OSError:
        return []
