#!/usr/bin/env python3
"""Slurm's Epilog for Salus: reports to salusd that a job is over. slurmd runs it as root after the job's last task.

Standard library only, idempotent and bounded. It always exits with 0, because a failing Epilog drains the node. For a
job that is not ours it only looks for the job's file.

    epilog.py [--socket PATH] [--wait SECONDS] [--connect SECONDS]
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - pathlib costs a job 5 ms

import hook  # type: ignore[import-not-found]

RELEASE_WAIT_S = 30.0


def run() -> None:
    options = hook.HookOptions(sys.argv[1:], RELEASE_WAIT_S)
    job = os.environ.get("SLURM_JOB_ID", "")
    # Move the file first: a daemon that comes back later must not believe that the job still runs.
    if not job.isdigit() or not hook.end_marker(options.socket, job):
        return
    request = {"verb": "job_end", "job": job, "uid": int(os.environ.get("SLURM_JOB_UID", "0"))}
    hook.notify("epilog", options, request, options.wait_s)


if __name__ == "__main__":
    hook.main("epilog", run)
