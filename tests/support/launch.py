"""Becomes a job of a test's salusd and then the command: launch.py CONTROL JSON COMMAND..."""

import json
import os
import sys

from tests.support.worker import start_run

if __name__ == "__main__":
    fields = json.loads(sys.argv[2])
    if uid := fields.pop("uid", 0):
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    answer = start_run(sys.argv[1], fields)
    if not answer["ok"]:
        sys.exit(f"launch: {answer['why']}")
    variables = dict(pair.split("=", 1) for pair in answer["env"])
    os.execvpe(sys.argv[3], sys.argv[3:], {**os.environ, **variables})
