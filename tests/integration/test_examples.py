"""The five example jobs share one host device: real PyTorch, the whole stack, the same parameters as a plain run."""

import random
import sqlite3
from collections import Counter

import pytest

from nodedaemon.core.fairness import jain
from nodedaemon.core.policies import POLICIES
from nodedaemon.service.journal.dispatcher import replay
from nodedaemon.service.journal.segments import read_journal
from tests.support.example_jobs import EXAMPLES, ExampleJobs, HighWaits
from tests.support.salusd import wait_until

#: One lane, so that all jobs compete for it. Loading PyTorch five times on a busy machine must not count as a hang.
CONFIG = "MaxLanes=1\nHangTimeout=1:00:00\nIdleRelease=5ms\nJournalFiles=200\n"
#: A server that sleeps between two requests, so that each request asks for the lane again.
PAUSED = ("--pause", "0.06")


@pytest.fixture
def examples(salusd, crew):
    """A function that starts the five jobs under a new daemon, up to their first boundary. They end with the test."""
    started = []

    def start(seconds, config, *, has_server=False):
        daemon = salusd(memory="4G", config=CONFIG + config, digest_every=1)
        jobs = ExampleJobs(daemon, crew(daemon))
        started.append(jobs)
        for number, example in enumerate(EXAMPLES, 1):
            jobs.start(example.name, example.command(seconds), remaining_s=10 * number)
        if has_server:
            server = EXAMPLES[-1]
            jobs.start("server", server.command(25 / server.iterations_per_s, *PAUSED), job_class="high")
        jobs.release()
        return jobs

    yield start
    for jobs in started:
        jobs.close()


def check_fair(jobs, iteration_count):
    """Check that five jobs that always want the lane get equal service, by Jain's index.

    The window lasts until the slowest job has run `iteration_count` iterations and the shares are equal. Its length is
    not fixed: on a busy machine one iteration can take as long as a whole window, and the others get their share later.
    A policy that is not fair never reaches the index, because iterations of the examples differ 18-fold in length.
    """
    names = {example.name for example in EXAMPLES}

    def find():
        found = jobs.sessions()
        assert names <= set(found), f"a job ended before the shares were equal: {sorted(found)}"
        return {name: (found[name]["service_ns"], found[name]["iteration_count"]) for name in names}

    wait_until(lambda: all(service_ns for service_ns, _ in find().values()), "all have been served once")
    before = find()

    def is_fair():
        now = find()
        gained = {name: now[name][0] - before[name][0] for name in names}
        means = [gained[name] / max(1, now[name][1] - before[name][1]) for name in names]
        return min(gained.values()) >= iteration_count * max(means) > 0 and jain(list(gained.values())) >= 0.98

    wait_until(is_fair, "the shares are equal", jobs.daemon.log_tail, deadline_s=300)


def check_priority(jobs):
    """Check, once the server has answered all its requests, that each was served at the next boundary."""
    wait_until(lambda: "server" not in jobs.sessions(), "the server is done", jobs.daemon.log_tail, deadline_s=120)
    overtaken = Counter(HighWaits(jobs.daemon).overtaken)
    # A hand-over that was decided before the request may still be under way.
    assert set(overtaken) <= {0, 1}, overtaken
    assert overtaken[0] >= 10, overtaken
    assert overtaken[0] > 4 * overtaken[1], overtaken


def iteration_sum(jobs):
    return sum(one["iteration_count"] for one in jobs.sessions().values())


def kill_often(jobs, kill_count, seed, policies=()):
    """Kill the daemon at random moments, under each of `policies` in turn. The jobs reconnect and continue."""
    chance = random.Random(seed)
    killed = 0
    while killed < kill_count and not jobs.are_over():
        policy = policies[killed % len(policies)] if policies else ""
        assert not policy or jobs.daemon.ask("policy_set", policy=policy)["ok"]
        before, more = iteration_sum(jobs), chance.randrange(1, 40)
        wait_until(
            # The sum falls when a job ends.
            lambda before=before, more=more: not before <= iteration_sum(jobs) < before + more,
            "the jobs continue",
            jobs.daemon.log_tail,
        )
        jobs.daemon.kill()
        killed += 1
        jobs.daemon.start()
        assert not policy or jobs.daemon.status()["devices"][0]["policy"] == policy, (
            "a policy that was set live must stay"
        )
    return killed


def check_records(jobs, count):
    """Check that no session is lost or counted twice, and that the replay of each segment restores its state."""
    daemon = jobs.daemon
    daemon.stop_written()
    with sqlite3.connect(daemon.database) as database:
        rows = list(database.execute("select number, end_utc_ns from sessions order by number"))
    assert [number for number, _ in rows] == list(range(1, count + 1)), rows
    assert all(end for _, end in rows), rows
    results = [replay(segment) for segment in read_journal(daemon.state / "journal")]
    assert sum(one.digest_count for one in results) > 100
    assert sum(one.mismatch_count for one in results) == 0


@pytest.mark.timeout(600)
def test_five_examples_share_a_device_by_class_and_fairly_and_survive_kills_of_the_daemon(examples):
    jobs = examples(1.8, "Policy=priority", has_server=True)
    check_priority(jobs)
    assert jobs.daemon.ask("policy_set", policy="fair")["ok"]
    check_fair(jobs, 8)
    assert kill_often(jobs, 3, seed=5, policies=("srtf", "pack", "fifo")) == 3
    jobs.finish()
    check_records(jobs, len(EXAMPLES) + 2)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("policy", POLICIES)
def test_five_examples_share_a_device_under(policy, examples):
    jobs = examples(10, f"Policy={policy}", has_server=policy == "priority")
    if policy == "fair":
        check_fair(jobs, 100)
    if policy == "priority":
        check_priority(jobs)
    jobs.finish(900)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_fifty_kills_of_the_daemon_at_random_moments_harm_no_example(examples):
    jobs = examples(30, "Policy=fair")
    assert kill_often(jobs, 50, seed=9) == 50
    jobs.finish(1800)
    check_records(jobs, len(EXAMPLES) + 1)
