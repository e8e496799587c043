#!/usr/bin/env python3
"""Slurm's Epilog for Salus, run as root after a job's last task: tells salusd that the job is over.

Standard library only, idempotent, bounded, and never non-zero: a failing Epilog drains the node. Jobs that are not ours
cost one look for their file.

    epilog.py [--socket PATH] [--wait SECONDS] [--connect SECONDS]
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - pathlib costs a job 5 ms

import hook  # type: ignore[import-not-found]


def main() -> None:
    # In so many seconds salusd must release the job.
    options = hook.Options(sys.argv[1:], wait_s=30.0)
    job = os.environ.get("SLURM_JOB_ID", "")
    if not job.isdigit() or not hook.has_marker(options.socket, job):
        return
    request = {"verb": "job_end", "job": job, "uid": int(os.environ.get("SLURM_JOB_UID", "0"))}
    # First the file: a daemon that is away and comes back must not take the job for a running one.
    hook.end_marker(options.socket, job)
    try:
        answer = hook.exchange(options.socket, request, options.connect_s, options.wait_s)
    except (OSError, ValueError) as error:
        hook.say(f"epilog: job {job}: salusd at {options.socket}: {error}")
        return
    if answer.get("ok") is not True:
        hook.say(f"epilog: job {job}: salusd: {answer.get('why', 'no reason given')}")


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # whatever it is, it must not drain the node
        hook.say(f"epilog: {type(error).__name__}: {error}")
    sys.exit(0)
