#!/usr/bin/env python3
"""Slurm's Prolog for Salus, run as root before a job's first task: tells salusd which job has which device.

Standard library only, idempotent, bounded, and never non-zero: a failing Prolog drains the node. A job that has no
device costs one look at the environment. For ours it leaves a file `jobs/ID` beside salusd's socket with the request
itself, so that the SPANK plugin knows the job, and salusd finds it, also when the daemon is away right now.

    prolog.py [--socket PATH] [--wait SECONDS] [--connect SECONDS]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import hook  # type: ignore[import-not-found]

# Fixed widths: a name that a user chose cannot pass for another column.
COLUMNS = (
    ("account", "Account", 64),
    ("qos", "QOS", 64),
    ("restart", "RestartCnt", 16),
    ("segment", "admin_comment", 2048),
)
SQUEUE_TIMEOUT_S = 5


def ask_slurm(job: str) -> dict[str, str]:
    """Account, QOS and our segment of admin_comment, which only root and SlurmUser can write; {} if Slurm is silent."""
    wanted = ",".join(f"{name}:{width}" for _, name, width in COLUMNS)
    try:
        told = subprocess.run(
            ["squeue", "--noheader", f"--jobs={job}", f"--Format={wanted}"],
            capture_output=True, text=True, timeout=SQUEUE_TIMEOUT_S, check=True,
        ).stdout.split("\n")[0]  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
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
    found["segment"] = next((piece for piece in found["segment"].split() if piece.startswith("salus:1")), "")
    return found


def request_of(environment: Mapping[str, str], wait_s: float) -> dict[str, Any] | None:
    """What salusd is told; None for a job that is not ours."""
    job = environment.get("SLURM_JOB_ID", "")
    if not job.isdigit() or not environment.get("SLURM_JOB_GPUS"):
        return None
    found = ask_slurm(job)
    # Without Slurm's answer the job may be ours: salusd treats one without a segment as unknown.
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
    parser = argparse.ArgumentParser(prog="prolog")
    parser.add_argument("--socket", default=os.environ.get("SALUS_SOCKET", hook.DEFAULT_SOCKET))
    parser.add_argument("--wait", type=float, default=55.0, help="seconds in which salusd must make room")
    parser.add_argument("--connect", type=float, default=2.0, help="seconds in which salusd must be there")
    options = parser.parse_args()
    request = request_of(os.environ, options.wait)
    if request is None:
        return
    hook.leave_marker(options.socket, request)
    try:
        answer = hook.exchange(options.socket, request, options.connect, options.wait + 1.0)
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
