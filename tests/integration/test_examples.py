"""The five example jobs share one host device at once: real PyTorch, whole stack, same parameters as a plain run."""

import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.salusd import ROOT, wait_until

MIB = 1 << 20
EXAMPLES = ("cnn", "transformer", "lstm", "gan", "inference")
POLICIES = ("fifo", "srtf", "pack", "fair", "priority")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def checksum_of(output):
    found = [line for line in output.splitlines() if line.startswith("checksum ")]
    assert found, output[-2000:]
    return found[-1]


def command_of(name, iterations):
    return [sys.executable, str(ROOT / "examples" / f"{name}.py"), "--iterations", str(iterations)]


def run_plain(name, iterations):
    done = subprocess.run(
        command_of(name, iterations),
        capture_output=True,
        text=True,
        env=ENVIRONMENT | {"SALUS_DISABLE": "1"},
        check=True,
    )
    return checksum_of(done.stdout)


@pytest.fixture(scope="module")
def plain():
    """Checksums of plain runs, by example and iterations; each is run once."""
    known = {}

    def find(iterations):
        wanted = [(name, iterations) for name in EXAMPLES if (name, iterations) not in known]
        with ThreadPoolExecutor(2) as pool:
            known.update(zip(wanted, pool.map(lambda one: run_plain(*one), wanted), strict=True))
        return {name: known[name, iterations] for name in EXAMPLES}

    return find


@pytest.fixture
def jobs(libsalus):
    """Gives a function that starts the five; all have ended after the test."""
    started = {}

    def start(daemon, iterations):
        for name in EXAMPLES:
            wish = {
                "name": name,
                "persistent_bytes": 400 * MIB,
                "ephemeral_bytes": 96 * MIB,
                "class": "high" if name == "inference" else "normal",
                "remaining_s": 60,
                "wait_ms": 60000,
            }
            started[name] = subprocess.Popen(
                [sys.executable, "-m", "tests.support.launch", str(daemon.control), json.dumps(wish),
                 *command_of(name, iterations)],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=ENVIRONMENT,
            )  # fmt: skip
        return started

    yield start
    for process in started.values():
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_gated(daemon, count):
    """So many are attached and have reached their first boundary; loading PyTorch five times takes its time."""
    states = ("running", "revoked", "waiting")
    return wait_until(
        lambda: sum(s["is_connected"] and s["state"] in states for s in daemon.status()["sessions"]) >= count,
        f"{count} jobs iterate",
        lambda: f"{daemon.status()['sessions']}\n{daemon.story()}",
        deadline_s=240,
    )


def finish(daemon, started, expected):
    with ThreadPoolExecutor(len(started)) as pool:
        outputs = dict(
            zip(started, pool.map(lambda one: one.communicate(timeout=280)[0], started.values()), strict=True)
        )
    for name, process in started.items():
        assert process.returncode == 0, outputs[name][-2000:]
        assert checksum_of(outputs[name]) == expected[name], name
    daemon.wait_for(lambda status: not status["sessions"], "all is given back")


@pytest.mark.timeout(600)
def test_five_examples_share_a_device_while_the_policy_changes_and_the_daemon_is_killed(salusd, jobs, plain):
    expected = plain(8)
    daemon = salusd(memory="3G", config="MaxLanes=2")
    started = jobs(daemon, 8)
    wait_gated(daemon, 2)
    chance = random.Random(5)
    kills = 1
    for policy in chance.sample(POLICIES, len(POLICIES)):
        if daemon.ask("policy_set", policy=policy)["ok"] and kills and policy != POLICIES[0]:
            kills -= 1
            daemon.kill()
            daemon.start()
            assert daemon.status()["devices"][0]["policy"] == policy, "a policy set live survives a restart"
    finish(daemon, started, expected)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("policy", POLICIES)
def test_five_examples_share_a_device_under(policy, salusd, jobs, plain):
    expected = plain(60)
    daemon = salusd(memory="3G", config=f"MaxLanes=1\nPolicy={policy}")
    started = jobs(daemon, 60)
    finish(daemon, started, expected)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_fifty_kills_of_the_daemon_at_random_moments_harm_no_example(salusd, jobs, plain):
    expected = plain(400)
    daemon = salusd(memory="3G", config="MaxLanes=2\nPolicy=fair")
    started = jobs(daemon, 400)
    wait_gated(daemon, 5)
    chance = random.Random(9)
    for _ in range(50):
        if all(process.poll() is not None for process in started.values()):
            break
        before = sum(s["iteration_count"] for s in daemon.status()["sessions"])
        more = chance.randrange(1, 20)
        wait_until(
            lambda before=before, more=more: (
                sum(s["iteration_count"] for s in daemon.status()["sessions"]) >= before + more
                or all(process.poll() is not None for process in started.values())
            ),
            "the jobs go on",
            daemon.story,
        )
        daemon.kill()
        daemon.start()
    finish(daemon, started, expected)
    assert "mismatches=0" in daemon.log.read_text()
    assert "mismatches=1" not in daemon.log.read_text()
