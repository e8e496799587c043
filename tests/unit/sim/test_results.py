"""Quantiles, the times of jobs, and Jain's index."""

import pytest

from nodedaemon.core.types import SECOND_NS, JobId
from nodedaemon.sim.results import JobTimes, ShareMeter, quantile, summarize
from nodedaemon.sim.workload import Job


def job(submit_s=0, *, name="a", count=10, weight=1):
    return Job(JobId(name), submit_s * SECOND_NS, 1, 1, SECOND_NS, count, weight=weight)


def test_quantiles_lie_between_the_nearest_values():
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert quantile([1.0], 0.95) == 1.0
    assert quantile([0.0, 10.0], 0.95) == pytest.approx(9.5)


def test_times_count_from_submission():
    records = [
        JobTimes(job(0, name="a"), start_ns=1 * SECOND_NS, end_ns=20 * SECOND_NS),
        JobTimes(job(10, name="b"), start_ns=20 * SECOND_NS, end_ns=30 * SECOND_NS),
    ]
    result = summarize("x", "w", records, 1, None)
    assert result.average_completion_s == 20
    assert result.average_queueing_s == 5.5
    assert result.makespan_s == 30
    assert result.average_slowdown == 2
    assert (result.hand_overs, result.gpus_needed, result.jain_average, result.average_request_wait_ms) == (
        0,
        1,
        None,
        None,
    )


def test_the_index_needs_five_rounds_and_restarts_with_each_arrival():
    meter = ShareMeter()
    first, second = job(name="a"), job(name="b")
    meter.join(first, 0)
    meter.join(second, 0)
    meter.serve(0, first, 9 * SECOND_NS)
    assert meter.sample() is None
    meter.serve(0, first, 1 * SECOND_NS)
    assert meter.sample() == pytest.approx(0.5)
    meter.serve(1, second, 10 * SECOND_NS)
    assert meter.sample() == pytest.approx(1.0)
    meter.join(job(name="c"), 20 * SECOND_NS)
    assert meter.sample() is None
    assert meter.minimum == pytest.approx(0.5)
    assert meter.average() == pytest.approx(1.0)


def test_the_index_counts_service_by_weight():
    meter = ShareMeter()
    light, heavy = job(name="a"), job(name="b", weight=3)
    meter.join(light, 0)
    meter.join(heavy, 0)
    meter.serve(0, light, 5 * SECOND_NS)
    meter.serve(1, heavy, 15 * SECOND_NS)
    assert meter.sample() == pytest.approx(1.0)


def test_one_job_alone_has_no_index():
    meter = ShareMeter()
    meter.join(job(), 0)
    meter.serve(0, job(), 100 * SECOND_NS)
    assert meter.sample() is None
    assert meter.average() is None
