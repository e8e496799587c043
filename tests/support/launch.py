"""Becomes a job of a test's salusd and then the command: launch.py CONTROL JSON COMMAND..."""

import json
import os
import sys

from tests.support.worker import start_run

if __name__ == "__main__":
    answer = start_run(sys.argv[1], json.loads(sys.argv[2]))
    if not answer["ok"]:
        sys.exit(f"launch: {answer['why']}")
    parameters = dict(pair.split("=", 1) for pair in answer["env"])
    os.execvpe(sys.argv[3], sys.argv[3:], {**os.environ, **parameters})
