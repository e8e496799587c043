"""Runs a program under the restrictions of a shipped unit that do not need systemd to run.

These are the capabilities, the file mode mask, the system calls and the ban on executable writable memory. Run as a
program, this file applies them to itself and becomes the program. `command` is the test's side.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_CAPABILITIES = Path("/usr/include/linux/capability.h")
_HEADERS = {"x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")}
_NUMBERS = _HEADERS.get(os.uname().machine, Path("/usr/include/asm-generic/unistd.h"))
_PR_CAPBSET_DROP, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _PR_SET_MDWE = 24, 22, 38, 65
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050001  # SECCOMP_RET_ALLOW; SECCOMP_RET_ERRNO with EPERM
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06


def unit_values(unit: str, key: str) -> list[str]:
    text = (ROOT / "etc" / "systemd" / f"{unit}.service").read_text()
    return re.findall(rf"^{key}=(.*)", text, re.MULTILINE)


def command(unit: str, *argv: str) -> list[str]:
    """The command line that runs `argv` as systemd would run the unit's program, but as the caller's user."""
    names = re.findall(r"#define (CAP_\w+)\s+\d+", _CAPABILITIES.read_text())
    kept = " ".join(unit_values(unit, "CapabilityBoundingSet")).split()
    restrictions = {
        "dropped": [_number(_CAPABILITIES, name) for name in names if name not in (*kept, "CAP_LAST_CAP")],
        "mask": int(unit_values(unit, "UMask")[0], 8),
        "is_memory_fixed": "yes" in unit_values(unit, "MemoryDenyWriteExecute"),
        "calls": sorted(_allowed_calls(tuple(unit_values(unit, "SystemCallFilter")))),
    }
    return [sys.executable, "-S", __file__, json.dumps(restrictions), *argv]


@functools.cache
def _defined(path: Path) -> dict[str, int]:
    return {name: int(number) for name, number in re.findall(r"#define (\w+)\s+(\d+)\b", path.read_text())}


def _number(path: Path, name: str) -> int:
    return _defined(path)[name]


def _allowed_calls(filters: tuple[str, ...]) -> set[int]:
    """The numbers of the system calls that these values of SystemCallFilter leave, in their order."""
    names: set[str] = set()
    for value in filters:
        words = {call for word in value.removeprefix("~").split() for call in _calls(word)}
        names = names - words if value.startswith("~") else names | words
    numbers = _defined(_NUMBERS)
    return {numbers[f"__NR_{name}"] for name in names | _calls("@default") if f"__NR_{name}" in numbers}


@functools.cache
def _calls(name: str) -> frozenset[str]:
    """The system calls of a set; systemd adds `@default` to every list."""
    if not name.startswith("@"):
        return frozenset({name})
    done = subprocess.run(["systemd-analyze", "syscall-filter", name], capture_output=True, text=True, check=True)
    words = [line.strip() for line in done.stdout.splitlines()[1:] if line.strip() and not line.strip().startswith("#")]
    return frozenset(call for word in words for call in _calls(word))


def _restrict(dropped: list[int], mask: int, calls: list[int], is_memory_fixed: bool) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def control(*arguments: object) -> None:
        if libc.prctl(*arguments, *[0] * (5 - len(arguments))) != 0:
            raise OSError(ctypes.get_errno(), f"prctl {arguments}")

    os.umask(mask)
    for capability in dropped:
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # a kernel may be older than its headers
    control(_PR_SET_NO_NEW_PRIVS, 1)
    if is_memory_fixed:
        control(_PR_SET_MDWE, 1)
    steps = [(_LOAD, 0, 0, 0)]
    for call in calls:
        steps += [(_JUMP_IF_EQUAL, 0, 1, call), (_RETURN, 0, 0, _ALLOW)]
    steps.append((_RETURN, 0, 0, _REFUSE))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code)))
    control(_PR_SET_SECCOMP, 2, program)


if __name__ == "__main__":
    _restrict(**json.loads(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
