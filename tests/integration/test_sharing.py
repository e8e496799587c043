"""Jobs share a device: one lane, several policies, and the whole stack of engine, daemon and libsalus."""

import pytest

from tests.support.example_jobs import HighWaits
from tests.support.workers import overlaps


def run_together(daemon, crew, options, iterations):
    workers = [crew.start(iterations=iterations, **one) for one in options]
    crew.ready()
    for worker in workers:
        worker.go()
    for worker in workers:
        worker.finish()
    return workers


@pytest.mark.parametrize("policy", ["fifo", "srtf", "pack", "fair", "priority"])
def test_three_jobs_take_turns_in_one_lane_under(policy, salusd, crew):
    daemon = salusd(config=f"MaxLanes=1\nPolicy={policy}")
    workers = run_together(daemon, crew(daemon), [{"iteration_us": 1000}] * 3, 100)
    assert [worker.wait_report("done")["count"] for worker in workers] == [100] * 3
    assert overlaps(workers) == 0
    daemon.wait_for(
        lambda status: not status["sessions"] and not status["lanes"], "all sessions and lanes are released"
    )


def service_by_job(daemon):
    return {session["job"]: session["service_ns"] for session in daemon.status()["sessions"]}


def test_fair_gives_equal_service_to_long_and_short_iterations(salusd, crew):
    daemon = salusd(config="MaxLanes=1\nPolicy=fair")
    group = crew(daemon)
    workers = [group.start(iteration_us=us) for us in (500, 1000, 2000, 4000)]
    group.ready()
    for worker in workers:
        worker.go()
    for worker in workers:
        worker.wait_iterations(2)
    # Compare the service that salusd counts between two readings. The turns that a worker sees also depend on how soon
    # a busy machine lets it run.
    before = service_by_job(daemon)
    workers[-1].wait_iterations(150)
    after = service_by_job(daemon)
    for worker in workers:
        worker.stop()
    for worker in workers:
        worker.finish()
    service = [after[worker.job] - before[worker.job] for worker in workers]
    jain = sum(service) ** 2 / (len(service) * sum(value * value for value in service))
    assert jain >= 0.98, service


def test_priority_starts_the_high_job_at_the_next_boundary(salusd, crew):
    daemon = salusd(config="MaxLanes=1\nPolicy=priority")
    group = crew(daemon)
    low = [group.start(iteration_us=20_000, job_class="normal") for _ in range(2)]
    high = group.start(iteration_us=1000, job_class="high", iterations=5)
    group.ready()
    for worker in low:
        worker.go()
        worker.wait_iterations(2)
    high.go()
    high.finish()
    # A session that pauses asks again for each of its iterations.
    server = group.start(iteration_us=1000, job_class="high", iterations=10, pause_us=5000)
    group.ready(server)
    server.go()
    server.finish()
    for worker in low:
        worker.stop()
    for worker in low:
        worker.finish()
    first_ns, last_ns = high.iterations()[0]["start_ns"], high.iterations()[-1]["end_ns"]
    between = [one for worker in low for one in worker.iterations() if first_ns <= one["start_ns"] < last_ns]
    assert between == []
    overtaken = HighWaits(daemon).overtaken
    # A hand-over that was decided before the high job asked may still be under way.
    assert len(overtaken) > 10
    assert set(overtaken) <= {0, 1}, overtaken
