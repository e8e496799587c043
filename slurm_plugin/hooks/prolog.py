#!/usr/bin/env python3
"""Slurm's Prolog for Salus, run as root before a job's first task: tells salusd which job has which device.

Standard library only, idempotent, bounded, and never non-zero: a failing Prolog drains the node. A job that has no
device costs one look at the environment. For ours it leaves a file `jobs/ID` beside salusd's socket with the request
itself, so that the SPANK plugin knows the job, and salusd finds it, also when the daemon is away right now.

    prolog.py [--socket PATH] [--wait SECONDS] [--connect SECONDS]
"""

from __future__ import annotations

import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - pathlib costs a job 5 ms

import hook  # type: ignore[import-not-found]

# Fixed widths: a name that a user chose cannot pass for another column.
COLUMNS = (
    ("account", "Account", 64),
    ("qos", "QOS", 64),
    ("restart", "RestartCnt", 16),
    ("segment", "admin_comment", 2048),
)
SQUEUE_TIMEOUT_S = 5.0
OUTPUT_BYTES_MAX = 65536


class Squeue:
    """One question to slurmctld, under way while this process gets ready for the answer."""

    def __init__(self, job: str) -> None:
        wanted = ",".join(f"{name}:{width}" for _, name, width in COLUMNS)
        self._deadline = time.monotonic() + SQUEUE_TIMEOUT_S
        self._output, theirs = os.pipe()
        try:
            self._pid = os.posix_spawnp(
                "squeue",
                ["squeue", "--noheader", f"--jobs={job}", f"--Format={wanted}"],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs, 1), (os.POSIX_SPAWN_CLOSE, self._output)],
            )
        finally:
            os.close(theirs)

    def answer(self) -> str:
        """Its output; OSError where it failed or took too long."""
        import select  # noqa: PLC0415 - see hook.py
        import signal  # noqa: PLC0415

        told = b""
        while len(told) < OUTPUT_BYTES_MAX:
            left_s = self._deadline - time.monotonic()
            if left_s <= 0 or not select.select([self._output], [], [], left_s)[0]:
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
                raise OSError(f"no answer in {SQUEUE_TIMEOUT_S:g} s")
            piece = os.read(self._output, OUTPUT_BYTES_MAX)
            if not piece:
                break
            told += piece
        os.close(self._output)
        if os.waitpid(self._pid, 0)[1] != 0:
            raise OSError("it failed")
        return told.decode(errors="replace").split("\n")[0]


def ask_slurm(job: str) -> dict[str, str]:
    """Account, QOS and our segment of admin_comment, which only root and SlurmUser can write; {} if Slurm is silent."""
    try:
        question = Squeue(job)
        # Needed later, and loaded while slurmctld answers.
        import json  # noqa: F401, PLC0415
        import socket  # noqa: F401, PLC0415

        told = question.answer()
    except OSError as error:
        hook.say(f"prolog: job {job}: squeue: {error}")
        return {}
    if not told:
        # squeue reports some of its faults with exit status 0 and an empty answer.
        return {}
    found, place = {}, 0
    for key, _, width in COLUMNS:
        text = told[place : place + width].strip()
        found[key] = "" if text == "(null)" else text
        place += width
    found["segment"] = find_segment(found["segment"])
    return found


def find_segment(comment: str) -> str:
    """The `salus:` segment of an admin_comment, or "". A copy of nodedaemon/wire/segment.py without `re`; tested."""
    # Bytes are split at ASCII white space only.
    words = comment.encode(errors="surrogatepass").split()
    return next((word for word in words if word.startswith(b"salus:1;")), b"").decode(errors="surrogatepass")


def request_of(environment: os._Environ[str], wait_s: float) -> dict[str, object] | None:
    """What salusd is told; None for a job that is not ours."""
    job = environment.get("SLURM_JOB_ID", "")
    if not job.isdigit() or not environment.get("SLURM_JOB_GPUS"):
        return None
    found = ask_slurm(job)
    # Without Slurm's answer the job may be ours: salusd asks again for one without a segment.
    if found and not found["segment"]:
        return None
    return {
        "verb": "job_start",
        "job": job,
        "uid": int(environment.get("SLURM_JOB_UID", "0")),
        "user": environment.get("SLURM_JOB_USER", ""),
        "gpus": environment["SLURM_JOB_GPUS"],
        # Releases differ in telling a Prolog of it; squeue has it in all.
        "restart": int(environment.get("SLURM_RESTART_COUNT") or found.get("restart") or 0),
        "partition": environment.get("SLURM_JOB_PARTITION", ""),
        "account": found.get("account", ""),
        "qos": found.get("qos", ""),
        "segment": found.get("segment", ""),
        "wait_ms": int(wait_s * 1000),
    }


def main() -> None:
    # In so many seconds salusd must make room.
    options = hook.Options(sys.argv[1:], wait_s=55.0)
    request = request_of(os.environ, options.wait_s)
    if request is None:
        return
    hook.leave_marker(options.socket, request)
    try:
        answer = hook.exchange(options.socket, request, options.connect_s, options.wait_s + 1.0)
    except (OSError, ValueError) as error:
        hook.say(f"prolog: job {request['job']}: salusd at {options.socket}: {error}")
        return
    if answer.get("ok") is not True:
        hook.say(f"prolog: job {request['job']}: salusd: {answer.get('why', 'no reason given')}")


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # whatever it is, it must not drain the node
        hook.say(f"prolog: {type(error).__name__}: {error}")
    sys.exit(0)
