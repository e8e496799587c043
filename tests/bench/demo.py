"""How long `salus demo` takes when the environment is already set up: `make bench BENCH=demo`.

The other side is an empty private cluster that goes up and down: what Slurm and the daemons take without any job.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from slurm_plugin.cluster import control
from slurm_plugin.cluster.plan import ClusterPlan

ROOT = Path(__file__).resolve().parents[2]


def say(text):
    print(f"demo: {text}", file=sys.stderr, flush=True)


def empty_cluster(directory):
    started = time.monotonic()
    cluster = control.up(ClusterPlan(directory=directory / "c", node_count=1, name="demo"), owner_pid=os.getpid())
    ready = time.monotonic()
    cluster.down()
    return {"up_s": round(ready - started, 1), "up_and_down_s": round(time.monotonic() - started, 1)}


def main():
    directory = Path(tempfile.mkdtemp(prefix="salus-"))
    directory.chmod(0o755)
    try:
        say("an empty cluster")
        cluster = empty_cluster(directory)
        say("the demo")
        started = time.monotonic()
        report = directory / "report.html"
        subprocess.run([sys.executable, "-m", "cli.main", "demo", "--report", str(report)], cwd=ROOT, check=True,
                       stdout=sys.stderr)  # fmt: skip
        seconds = round(time.monotonic() - started, 1)
        result = {"bench": "demo", "n": 1, "seconds": seconds, "report_kib": report.stat().st_size // 1024, **cluster}
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(json.dumps({**result, "ratio": round(seconds / cluster["up_and_down_s"], 2)}))


if __name__ == "__main__":
    main()
