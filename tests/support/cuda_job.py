"""Starts a program as a local job of salusd: sends `run_start`, sets the environment, preloads libsalus.

cuda_job.py CONTROL-SOCKET LIBRARY|'' {json of run_start} PROGRAM [ARGUMENTS]
"""

import json
import os
import socket
import sys


def main(control: str, library: str, fields: str, command: list[str]) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(control)
        connection.sendall(json.dumps({"verb": "run_start", **json.loads(fields)}).encode() + b"\n")
        with connection.makefile() as answers:
            answer = json.loads(answers.readline())
    if not answer["ok"]:
        raise SystemExit(f"cuda_job: {answer}")
    options = dict(entry.split("=", 1) for entry in answer["env"])
    if library:
        options["LD_PRELOAD"] = library
    os.execve(sys.executable, [sys.executable, *command], {**os.environ, **options})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
