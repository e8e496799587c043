"""Submissions with Salus against plain Slurm, on one cluster in one run: `make bench BENCH=submit`.

Both sides submit held jobs to the same slurmctld: once `--gres=salus:1` with a known profile, so that the whole path
runs; once `--gres=gpu:1` with commands that load no SPANK plugin, which job_submit.lua accepts without a request. Sides
alternate in blocks, so that a drift of the machine affects both. A 500-task array and a complete `srun true` follow.
"""

import argparse
import json
import os
import pwd
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nodedaemon.core.types import MIB
from slurm_plugin.cluster import control
from slurm_plugin.cluster.plan import ClusterPlan
from tests.support.lab import Lab, wait_for

USER = pwd.getpwnam("games")
SIDES = {"plain": "--gres=gpu:1", "salus": "--gres=salus:1"}


def say(text):
    print(f"submit: {text}", file=sys.stderr, flush=True)


def plain_conf(lab):
    """A slurm.conf for commands that do not load Salus."""
    conf = lab.cluster.plan.slurm_conf
    plain = conf.with_name("plain.conf")
    plain.write_text("".join(line for line in conf.open() if not line.startswith("PlugStackConfig")))
    return plain


def command(lab, side, *argv):
    conf = lab.cluster.plan.slurm_conf.with_name("slurm.conf" if side == "salus" else "plain.conf")
    started = time.perf_counter()
    subprocess.run(
        argv, env={"SLURM_CONF": str(conf), "PATH": os.environ["PATH"]}, cwd=lab.work, user=USER.pw_uid,
        group=USER.pw_gid, extra_groups=[], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return time.perf_counter() - started


def submit(lab, side, script):
    return command(lab, side, "sbatch", "-H", "-o/dev/null", SIDES[side], script)


def block(lab, side, script, count, clients):
    """Submissions per second, and the latency of each."""
    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        spans = list(pool.map(lambda _: submit(lab, side, script), range(count)))
    return count / (time.perf_counter() - started), spans


def compare(lab, script, clients, count, rounds):
    rates, spans = {side: [] for side in SIDES}, {side: [] for side in SIDES}
    for number in range(rounds):
        for side in SIDES if number % 2 == 0 else reversed(SIDES):
            rate, found = block(lab, side, script, count, clients)
            rates[side].append(rate)
            spans[side] += found
            lab.cancel_all()
        latest = ", ".join(f"{side} {rates[side][-1]:.0f}/s" for side in SIDES)
        say(f"{clients} clients, round {number + 1} of {rounds}: {latest}")
    medians = {side: statistics.median(rates[side]) for side in SIDES}
    return {
        "clients": clients,
        "n": count * rounds,
        "plain_per_s": round(medians["plain"], 1),
        "salus_per_s": round(medians["salus"], 1),
        "plain_ms": round(statistics.median(spans["plain"]) * 1000, 2),
        "salus_ms": round(statistics.median(spans["salus"]) * 1000, 2),
        "ratio": round(medians["salus"] / medians["plain"], 3),
    }


def array_and_start(lab, script, rounds):
    """One 500-task array, and a complete `srun true` on an idle node; medians in ms. Sides alternate."""
    arrays, starts = {side: [] for side in SIDES}, {side: [] for side in SIDES}
    for number in range(rounds * 3):
        for side in SIDES if number % 2 == 0 else reversed(SIDES):
            if number < rounds:
                arrays[side].append(
                    command(lab, side, "sbatch", "-H", "-o/dev/null", "--array=1-500", SIDES[side], script)
                )
                lab.cancel_all()
            starts[side].append(command(lab, side, "srun", SIDES[side], "true"))
            # A job that follows at once waits for the Epilog of the one before.
            wait_for(lambda: not lab.ask("squeue", "-h").strip(), "the Epilog", 30)
    found = {}
    for side in SIDES:
        found[f"{side}_array_500_ms"] = round(statistics.median(arrays[side]) * 1000, 2)
        found[f"{side}_start_ms"] = round(statistics.median(starts[side]) * 1000, 1)
        say(f"{side}: array of 500 in {found[f'{side}_array_500_ms']} ms, srun true in {found[f'{side}_start_ms']} ms")
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100, help="submissions per block")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="salus-"))
    directory.chmod(0o755)
    say("starting a cluster")
    cluster = control.up(
        ClusterPlan(directory=directory / "c", salus_lines=("ReadmitInterval=5",)), owner_pid=os.getpid()
    )
    try:
        lab = Lab(cluster)
        plain_conf(lab)
        script = lab.script("job.sh", "sleep 1")
        probe = lab.sbatch("-H", "--gres=salus:1", script)
        lab.store_profile(lab.segment(probe).signature, 100 * MIB, 100 * MIB)
        lab.cancel_all()
        clients = [compare(lab, script, clients, options.count, options.rounds) for clients in (1, 4)]
        result = {
            "bench": "submit",
            "n": sum(found["n"] for found in clients),
            "clients": clients,
            **array_and_start(lab, script, options.rounds),
            "ratio": min(found["ratio"] for found in clients),
        }
    finally:
        cluster.down()
        shutil.rmtree(directory, ignore_errors=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
