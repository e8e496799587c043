"""The daemon is killed while jobs run in lanes: they continue, and the next daemon restores its state and sessions."""

import random
import signal
import sqlite3

import pytest

from nodedaemon.service.journal.dispatcher import replay
from nodedaemon.service.journal.segments import read_journal
from tests.integration.faults.running import finish, start_running, wait_for_more
from tests.support.salusd import wait_until
from tests.support.workers import overlaps

#: The holder gets a lot of service while the daemon is down. A short half-life keeps its wait for the others short.
FAIR = "Policy=fair\nDecayHalfLife=500ms"


def replay_counts(daemon):
    segments = read_journal(daemon.state / "journal")
    results = [replay(segment) for segment in segments]
    return sum(one.digest_count for one in results), sum(one.mismatch_count for one in results)


def kill_often(daemon, workers, kill_count, seed):
    """Kill the daemon at random moments. Each time every session must come back and continue."""
    moments = random.Random(seed)
    for _ in range(kill_count):
        before = [len(worker.iterations()) for worker in workers]
        more = moments.randrange(1, 30)
        wait_until(
            lambda before=before, more=more: sum(len(w.iterations()) for w in workers) >= sum(before) + more,
            "iterations between two kills",
            daemon.log_tail,
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
            "every worker continues after the restart",
            daemon.log_tail,
        )


def check_kills(daemon, group, kill_count, seed):
    workers = [group.start(iteration_us=us, persistent=4, ephemeral=e) for us, e in ((500, 8), (1500, 8), (3000, 12))]
    group.ready()
    for worker in workers:
        worker.go()
    kill_often(daemon, workers, kill_count, seed)
    finish(*workers)
    assert overlaps(workers) == 0
    assert "off" not in {one["what"] for worker in workers for one in worker.reports}
    daemon.wait_for(lambda status: not status["sessions"] and not status["lanes"], "all memory is released")
    # A stop waits 3 s for the database. A busy machine may need longer, and the rest would stay in the spool.
    daemon.stop_written()
    digest_count, mismatch_count = replay_counts(daemon)
    assert digest_count > 0
    assert mismatch_count == 0
    with sqlite3.connect(daemon.database) as database:
        rows = list(database.execute("select number, end_utc_ns, iteration_count from sessions order by number"))
    assert [row[0] for row in rows] == [1, 2, 3], "no session is lost or counted twice"
    assert all(row[1] is not None for row in rows)


def test_a_killed_daemon_takes_its_sessions_back(salusd, crew):
    daemon = salusd(config=f"MaxLanes=1\n{FAIR}", digest_every=1)
    check_kills(daemon, crew(daemon), 3, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_killed_daemon_takes_its_sessions_back_fifty_times(salusd, crew):
    daemon = salusd(config=f"MaxLanes=1\n{FAIR}", digest_every=1)
    check_kills(daemon, crew(daemon), 50, seed=2)


def test_jobs_continue_while_the_daemon_is_down(salusd, crew):
    daemon = salusd()
    worker = start_running(crew(daemon), iteration_us=500)
    daemon.kill()
    wait_for_more(worker, 200)
    daemon.start()
    daemon.wait_for(
        lambda status: [s["is_connected"] for s in status["sessions"]] == [True], "the session is taken back"
    )
    finish(worker)


def start_two_and_kill(daemon, group):
    """Two workers that share a lane while the daemon is down."""
    workers = [start_running(group, iteration_us=500) for _ in range(2)]
    daemon.kill()
    return workers


def test_a_session_that_died_while_the_daemon_was_down_is_released(salusd, crew):
    daemon = salusd(config="MaxLanes=1")
    gone, left = start_two_and_kill(daemon, crew(daemon))
    gone.close()
    daemon.start()
    daemon.wait_for(lambda status: len(status["sessions"]) == 1, "the dead session is released")
    wait_for_more(left)
    finish(left)


def test_a_session_that_dies_while_the_daemon_gathers_the_others_is_released(salusd, crew):
    daemon = salusd(config="MaxLanes=1")
    gone, left = start_two_and_kill(daemon, crew(daemon))
    # A stopped session cannot come back, so the daemon gathers until it continues.
    left.signal(signal.SIGSTOP)
    daemon.start("--gather", "60")
    assert daemon.status()["daemon"]["is_gathering"]
    gone.close()
    left.signal(signal.SIGCONT)
    daemon.wait_for(
        lambda status: not status["daemon"]["is_gathering"] and len(status["sessions"]) == 1,
        "the dead session is released",
    )
    wait_for_more(left)
    finish(left)
    daemon.wait_for(lambda status: not status["sessions"] and not status["lanes"], "all memory is released")


def test_a_new_session_waits_until_the_old_ones_are_gathered_and_memory_is_free(salusd, crew):
    daemon = salusd(config="MaxLanes=1")
    group = crew(daemon)
    old = start_running(group, iteration_us=500)
    daemon.kill()
    old.signal(signal.SIGSTOP)
    daemon.start("--gather", "60")
    # An unmeasured job needs the whole device. It gives up on a daemon that does not answer within 0.1 s.
    new = group.start(no_run=True, hello_timeout_ms=100, iterations=3)
    new.wait_report("says hello")
    old.signal(signal.SIGCONT)
    daemon.wait_for(
        lambda status: "arriving" in {s["state"] for s in status["sessions"]}, "the new session waits for memory"
    )
    finish(old)
    group.ready(new)
    new.go()
    new.finish()
