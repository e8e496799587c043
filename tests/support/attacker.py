"""Runs programs that attack as another user. A program is a text: the attacker may not be able to read the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from tests.support.salusd import DEADLINE_S, ROOT

#: Uids that no account has. Several attackers at once are different users.
ATTACKERS = (31415, 31416, 31417)
ATTACKER = ATTACKERS[0]

# Imported before the ids change: the interpreter may be in root's home, which the attacker cannot enter.
_DROP = """
import ctypes, json, mmap, os, signal, socket, struct, subprocess, sys, time
uid = int(sys.argv.pop(1))
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
program = sys.argv.pop(1)
exec(compile(program, "attack", "exec"))
"""


def start_attack(program: str, *arguments: object, uid: int = ATTACKER, **options: Any) -> subprocess.Popen[str]:
    """Start `program` as `uid`, with its arguments in sys.argv[1:]. The caller ends it."""
    return subprocess.Popen(
        [sys.executable, "-c", _DROP, str(uid), program, *map(str, arguments)],
        text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT)}, **options,
    )  # fmt: skip


def attack(program: str, *arguments: object, uid: int = ATTACKER, timeout_s: float = DEADLINE_S) -> str:
    """Run `program` as `uid` to its end and return what it printed. It must not fail by itself."""
    with start_attack(program, *arguments, uid=uid) as process:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    return output
