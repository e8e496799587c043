"""Fault 1: the daemon is killed with jobs in lanes. They go on, it takes them back, and its state is what it was."""

import random
import signal
import sqlite3

import pytest

from nodedaemon.service.journal.dispatcher import replay
from nodedaemon.service.journal.segments import read_journal
from tests.support.salusd import wait_until
from tests.support.workers import overlaps

#: Whoever held the lane while the daemon was away has had much service; it need not wait long for the others here.
FAIR = "Policy=fair\nDecayHalfLife=500ms"


def replay_counts(daemon):
    segments = read_journal(daemon.state / "journal")
    results = [replay(segment) for segment in segments]
    return sum(one.digest_count for one in results), sum(one.mismatch_count for one in results)


def kill_often(daemon, workers, kill_count, seed):
    """Kill at random moments of the run; each time everybody must be back and go on."""
    chance = random.Random(seed)
    for _ in range(kill_count):
        before = [len(worker.iterations()) for worker in workers]
        more = chance.randrange(1, 30)
        wait_until(
            lambda before=before, more=more: sum(len(w.iterations()) for w in workers) >= sum(before) + more,
            "iterations between two kills",
            daemon.story,
        )
        daemon.kill()
        daemon.start()
        daemon.wait_for(
            lambda status: (
                len(status["sessions"]) == len(workers) and all(s["is_connected"] for s in status["sessions"])
            ),
            "all sessions are back",
        )
        after = [len(worker.iterations()) for worker in workers]
        wait_until(
            lambda after=after: all(len(w.iterations()) > count for w, count in zip(workers, after, strict=True)),
            "everybody goes on after the restart",
            daemon.story,
        )


def check_kills(daemon, group, kill_count, seed):
    workers = [group.start(iteration_us=us, persistent=4, ephemeral=e) for us, e in ((500, 8), (1500, 8), (3000, 12))]
    group.ready()
    for worker in workers:
        worker.go()
    kill_often(daemon, workers, kill_count, seed)
    for worker in workers:
        worker.stop()
    for worker in workers:
        worker.finish()
    assert overlaps(workers) == 0
    assert "off" not in {one["what"] for worker in workers for one in worker.reports}
    daemon.wait_for(lambda status: not status["sessions"] and not status["lanes"], "all is given back")
    daemon.stop()
    digest_count, mismatch_count = replay_counts(daemon)
    assert digest_count > 0
    assert mismatch_count == 0
    with sqlite3.connect(daemon.database) as database:
        rows = list(database.execute("select number, end_utc_ns, iteration_count from sessions order by number"))
    assert [row[0] for row in rows] == [1, 2, 3], "no session is lost or counted twice"
    assert all(row[1] is not None for row in rows)


def test_01_killed_daemon_takes_its_sessions_back(salusd, crew):
    daemon = salusd(config=f"MaxLanes=1\n{FAIR}", digest_every=1)
    check_kills(daemon, crew(daemon), 3, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_01_killed_daemon_takes_its_sessions_back_fifty_times(salusd, crew):
    daemon = salusd(config=f"MaxLanes=1\n{FAIR}", digest_every=1)
    check_kills(daemon, crew(daemon), 50, seed=2)


def test_01_jobs_run_on_while_the_daemon_is_away(salusd, crew):
    daemon = salusd()
    worker = crew(daemon).start(iteration_us=500)
    worker.go()
    worker.wait_iterations(5)
    daemon.kill()
    count = len(worker.iterations())
    worker.wait_iterations(count + 200)
    daemon.start()
    daemon.wait_for(lambda status: [s["is_connected"] for s in status["sessions"]] == [True], "it is taken back")
    worker.stop()
    worker.finish()


def test_01_a_session_that_died_meanwhile_is_released(salusd, crew):
    daemon = salusd(config="MaxLanes=1")
    group = crew(daemon)
    gone, left = group.start(iteration_us=500), group.start(iteration_us=500)
    group.ready()
    for worker in (gone, left):
        worker.go()
        worker.wait_iterations(5)
    daemon.kill()
    gone.close()
    daemon.start()
    daemon.wait_for(lambda status: len(status["sessions"]) == 1, "the dead one is released")
    count = len(left.iterations())
    left.wait_iterations(count + 20)
    left.stop()
    left.finish()


def test_01_a_session_that_dies_while_the_others_are_gathered_is_released(salusd, crew):
    daemon = salusd(config="MaxLanes=1")
    group = crew(daemon)
    gone, left = group.start(iteration_us=500), group.start(iteration_us=500)
    group.ready()
    for worker in (gone, left):
        worker.go()
        worker.wait_iterations(5)
    daemon.kill()
    # A stopped session cannot come back, so the daemon gathers until it goes on.
    left.signal(signal.SIGSTOP)
    daemon.start("--gather", "60")
    assert daemon.status()["daemon"]["is_gathering"]
    gone.close()
    left.signal(signal.SIGCONT)
    daemon.wait_for(
        lambda status: not status["daemon"]["is_gathering"] and len(status["sessions"]) == 1, "the dead one is released"
    )
    count = len(left.iterations())
    left.wait_iterations(count + 20)
    left.stop()
    left.finish()
    daemon.wait_for(lambda status: not status["sessions"] and not status["lanes"], "all is given back")


def test_01_a_new_session_waits_for_the_gathering_and_for_memory(salusd, crew):
    daemon = salusd(config="MaxLanes=1")
    group = crew(daemon)
    old = group.start(iteration_us=500)
    group.ready()
    old.go()
    old.wait_iterations(5)
    daemon.kill()
    old.signal(signal.SIGSTOP)
    daemon.start("--gather", "60")
    # Unmeasured, so it needs the whole device; salusd that says nothing is given up on after a tenth of a second.
    new = group.start(no_run=True, hello_timeout_ms=100, iterations=3)
    new.wait_report("says hello")
    old.signal(signal.SIGCONT)
    daemon.wait_for(lambda status: "arriving" in {s["state"] for s in status["sessions"]}, "it waits for memory")
    old.stop()
    old.finish()
    group.ready(new)
    new.go()
    new.finish()
