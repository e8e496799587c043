#!/usr/bin/env python3
"""Slurm's Prolog for Salus: reports to salusd which job has which device. slurmd runs it as root before the first task.

Standard library only, idempotent and bounded. It always exits with 0, because a failing Prolog drains the node. For a
job without a device it only looks at the environment. For a Salus job it leaves the request as a file `jobs/ID` beside
salusd's socket. The SPANK plugin and salusd find the job by that file, even if the daemon is down now.

    prolog.py [--socket PATH] [--wait SECONDS] [--connect SECONDS]
"""

from __future__ import annotations

import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - pathlib costs a job 5 ms

import hook  # type: ignore[import-not-found]

COLUMNS = (
    ("account", "Account", 64),
    ("qos", "QOS", 64),
    ("restart", "RestartCnt", 16),
    ("tres", "tres-per-node", 512),
    ("segment", "admin_comment", 2048),
)
SQUEUE_TIMEOUT_S = 5.0
# How long salusd may take to free memory for the job.
ROOM_WAIT_S = 55.0
OUTPUT_BYTES_MAX = 65536


class Squeue:
    """A query to slurmctld that runs while this process loads what it needs next."""

    def __init__(self, job: str) -> None:
        # Users choose some of the texts, but not the delimiter; see nodedaemon/wire/delimited.py.
        self._delimiter = "x" + os.urandom(16).hex()
        wanted = ",".join(f"{name}:{width}{self._delimiter}" for _, name, width in COLUMNS)
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

    def answer(self) -> list[str]:
        """The cells of the first row, or [] without one; OSError if it failed or took too long."""
        import select  # noqa: PLC0415 - see hook.py
        import signal  # noqa: PLC0415

        output = b""
        while len(output) < OUTPUT_BYTES_MAX:
            left_s = self._deadline - time.monotonic()
            if left_s <= 0 or not select.select([self._output], [], [], left_s)[0]:
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
                raise OSError(f"no answer in {SQUEUE_TIMEOUT_S:g} s")
            piece = os.read(self._output, OUTPUT_BYTES_MAX)
            if not piece:
                break
            output += piece
        os.close(self._output)
        if os.waitpid(self._pid, 0)[1] != 0:
            raise OSError("it failed")
        cells = output.decode(errors="replace").split(self._delimiter)
        return [cell.strip(" ") for cell in cells[: len(COLUMNS)]] if len(cells) > len(COLUMNS) else []


def ask_slurm(job: str) -> dict[str, str]:
    """The columns of the job, with only our segment of admin_comment; {} without an answer."""
    try:
        question = Squeue(job)
        # Loaded here, while slurmctld answers.
        import json  # noqa: F401, PLC0415
        import socket  # noqa: F401, PLC0415

        cells = question.answer()
    except OSError as error:
        hook.say(f"prolog: job {job}: squeue: {error}")
        return {}
    if not cells:
        # squeue reports some errors with exit status 0 and an empty answer.
        return {}
    fields = {key: "" if cell == "(null)" else cell for (key, _, _), cell in zip(COLUMNS, cells)}  # noqa: B905 - 3.8
    fields["segment"] = find_segment(fields["segment"])
    return fields


def has_salus(tres: str) -> bool:
    """Whether tres-per-node names gres/salus. A copy of SALUS_TRES in nodedaemon/drivers/slurm.py without `re`; tested.

    A segment alone is not enough: a user's own program can write an admin_comment when it submits a job.
    """
    marks = [gres.replace("/", ":").replace("=", ":").split(":")[:2] for gres in tres.split(",")]
    return ["gres", "salus"] in marks


def find_segment(comment: str) -> str:
    """The `salus:` segment of an admin_comment, or "". A copy of nodedaemon/wire/segment.py without `re`; tested."""
    # Bytes are split at ASCII white space only.
    words = comment.encode(errors="surrogatepass").split()
    return next((word for word in words if word.startswith(b"salus:1;")), b"").decode(errors="surrogatepass")


def request_of(environment: os._Environ[str], wait_s: float) -> dict[str, object] | None:
    """The request to salusd; None for a job that is not ours."""
    job = environment.get("SLURM_JOB_ID", "")
    if not job.isdigit() or not environment.get("SLURM_JOB_GPUS"):
        return None
    fields = ask_slurm(job)
    # Without Slurm's answer the job may be ours: salusd asks Slurm again about a job without a segment.
    if fields and not (fields["segment"] and has_salus(fields["tres"])):
        return None
    return {
        "verb": "job_start",
        "job": job,
        "uid": int(environment.get("SLURM_JOB_UID", "0")),
        "user": environment.get("SLURM_JOB_USER", ""),
        "gpus": environment["SLURM_JOB_GPUS"],
        # Not every release gives it to the Prolog; squeue always has it.
        "restart": int(environment.get("SLURM_RESTART_COUNT") or fields.get("restart") or 0),
        "partition": environment.get("SLURM_JOB_PARTITION", ""),
        "account": fields.get("account", ""),
        "qos": fields.get("qos", ""),
        "segment": fields.get("segment", ""),
        "wait_ms": int(wait_s * 1000),
    }


def run() -> None:
    options = hook.HookOptions(sys.argv[1:], ROOM_WAIT_S)
    request = request_of(os.environ, options.wait_s)
    if request is None:
        return
    hook.leave_marker(options.socket, request)
    hook.notify("prolog", options, request, options.wait_s + 1.0)


if __name__ == "__main__":
    hook.main("prolog", run)
