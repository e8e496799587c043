"""Sessions that compete: how often a waiter is overtaken, high jobs beside low ones, and races for the last bytes."""

import os
import threading

import pytest

from nodedaemon.core.commands import Grant
from nodedaemon.core.events import GrantReturned, GrantWanted
from nodedaemon.service.journal.dispatcher import replay
from nodedaemon.service.journal.segments import read_journal
from tests.integration.faults.running import finish, wait_for_more


def overtakings(daemon, session):
    """From the journal: how many iterations of other sessions began during each wait of the session."""
    counts, waiting = [], [False, 0]

    def watch(event, _now_ns, made):
        if isinstance(event, GrantReturned) and event.session != session and waiting[0]:
            waiting[1] += event.contended_count
        is_request = isinstance(event, GrantWanted) or (isinstance(event, GrantReturned) and event.wants_next)
        if is_request and event.session == session:
            waiting[:] = [True, 0]
        is_granted = any(isinstance(one, Grant) and one.session == session for one in made)
        if waiting[0] and (is_granted or (isinstance(event, GrantReturned) and event.handed_over is not None)):
            counts.append(waiting[1])
            waiting[0] = False

    for segment in read_journal(daemon.state / "journal"):
        replay(segment, watch)
    return counts


@pytest.mark.parametrize("overtakes_max", [20, 10_000_000], ids=["bound", "control"])
def test_no_waiter_is_overtaken_more_often_than_allowed(overtakes_max, salusd, crew):
    """Under fifo the first session keeps the lane; only the bound on overtaking lets the second one run."""
    daemon = salusd(config=f"MaxLanes=1\nPolicy=fifo\nMaxOvertakes={overtakes_max}")
    group = crew(daemon)
    # Start one after the other: fifo orders sessions by arrival, not by the start of their process.
    first = group.start(iteration_us=500)
    group.ready(first)
    late = group.start(iteration_us=500)
    group.ready(late)
    first.go()
    first.wait_iterations(5)
    late.go()
    daemon.wait_for(lambda status: daemon.sessions()[late.job]["state"] == "waiting", "the second session waits")
    if overtakes_max > 20:
        wait_for_more(first, 300)
        assert late.iterations() == []
    else:
        late.wait_iterations(30)
    finish(first, late)
    daemon.stop()
    counts = overtakings(daemon, 2)
    assert counts
    assert max(counts) <= overtakes_max, counts


def high_beside_low(daemon, group, iterations):
    """How many iterations each low job begins between the first and the last one of a high job."""
    low = [group.start(iteration_us=3000, job_class="best-effort") for _ in range(4)]
    high = group.start(iteration_us=500, job_class="high", iterations=iterations)
    group.ready()
    for worker in low:
        worker.go()
        worker.wait_iterations(1)
    high.go()
    high.finish()
    first_ns, last_ns = high.iterations()[0]["start_ns"], high.iterations()[-1]["end_ns"]
    counts = [sum(first_ns <= it["start_ns"] < last_ns for it in one.iterations()) for one in low]
    finish(*low)
    return counts


def test_a_waiting_high_job_is_not_delayed_by_low_jobs_ahead_of_it(salusd, crew):
    """Under priority the low holder returns its grant at the next boundary, and the high job comes next."""
    daemon = salusd(config="MaxLanes=1\nPolicy=priority")
    assert high_beside_low(daemon, crew(daemon), iterations=3) == [0] * 4


def test_no_low_iteration_starts_in_another_lane_while_a_high_job_runs(salusd, crew):
    """Classes hold for the whole device: sorting alone would put the high job first only in its own lane."""
    daemon = salusd(config="MaxLanes=2\nPolicy=priority\nIdleRelease=1:00:00\nHangTimeout=2:00:00")
    counts = high_beside_low(daemon, crew(daemon), iterations=200)
    # A low job that has passed the gate may read the clock later than the high job that came meanwhile.
    assert max(counts) <= 1, counts


def test_jobs_that_race_for_the_last_bytes_are_admitted_one_by_one(salusd):
    daemon = salusd(memory="64M")
    answers = {}

    def start(number):
        segment = "salus:1;P=25165824;E=8388608;K=shared"
        answers[number] = daemon.hook("job_start", job=str(number), uid=os.getuid(), segment=segment, wait_ms=500)["ok"]

    threads = [threading.Thread(target=start, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers.values()) == [False] * 4 + [True] * 2
    device = daemon.status()["devices"][0]
    assert device["persistent_bytes"] + device["lane_bytes"] <= device["capacity_bytes"]
    admitted = next(number for number, ok in answers.items() if ok)
    # Jobs are admitted in order, so a change that helps the oldest may not help the others.
    waiting = [one for one in daemon.status()["sessions"] if one["state"] == "arriving"]
    oldest = min(waiting, key=lambda one: one["session"])
    why = daemon.ask("why", job=oldest["job"])["sessions"][0]
    assert why["reasons"]
    assert any(change["is_served"] for change in why["changes"])
    daemon.hook("job_end", job=str(admitted), uid=os.getuid())
    daemon.wait_for(
        lambda status: sum(s["state"] != "arriving" for s in status["sessions"]) == 2, "the next job is admitted"
    )
