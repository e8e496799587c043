"""The side-by-side's jobs and figures: the same for a seed, and worked out by hand."""

import pytest

from tests.support import mix
from tests.support.slurm_mix import Ended, figures, jain, quantile, slurm_time


def ended(name, submitted, first, end, cpu_s):
    return Ended(name, submitted, end, "node1", {"first": first, "cpu_s": cpu_s})


def test_a_seed_gives_the_same_jobs():
    jobs = mix.mix()
    assert jobs == mix.mix(mix.SEED)
    assert len(jobs) >= 24
    assert [job.is_long for job in jobs[: mix.LONG_COUNT + 1]] == [True] * mix.LONG_COUNT + [False]
    assert len({job.kind.name for job in jobs}) == len(mix.KINDS)
    assert [job.submit_s for job in jobs] == sorted(job.submit_s for job in jobs)


def test_lengths_are_those_of_the_paper_workload():
    lengths_s = mix.lengths_s(1001)
    # A lognormal with a mean of 180 s and sigma 2 has its median at 180 / e^2 = 24.36 s.
    assert lengths_s[500] == pytest.approx(24.36 / mix.SCALE, rel=1e-3)
    assert (lengths_s[0], lengths_s[-1]) == (pytest.approx(10 / mix.SCALE), mix.LONG_S)
    drawn = sorted(job.length_s for job in mix.mix() if not job.is_long)
    assert drawn == [round(length_s, 3) for length_s in mix.lengths_s(len(drawn))]


def test_a_random_order_keeps_jobs_and_times():
    jobs, shuffled = mix.mix(), mix.mix(in_random_order=True)
    assert [job.submit_s for job in shuffled] == [job.submit_s for job in jobs]
    assert sorted(job.name for job in shuffled) == sorted(job.name for job in jobs)
    assert [job.name for job in shuffled] != [job.name for job in jobs]


def test_figures_of_two_jobs():
    jobs = {"a": ended("a", 100.0, 103.0, 110.0, 6.0), "b": ended("b", 102.0, 104.0, 122.0, 5.0)}
    told = figures(jobs, {"a": 5.0, "b": 5.0}, device_count=2)
    assert (told["average_s"], told["makespan_s"], told["queueing_s"]) == (15.0, 22.0, 2.5)
    assert told["busy_share"] == pytest.approx(11 / 44)
    assert told["slowdown"] == 3.0
    assert told["jain"] == pytest.approx((0.5 + 0.25) ** 2 / (2 * (0.25 + 0.0625)))
    assert told["completion_s"] == [10.0, 20.0]


def test_small_arithmetic():
    assert jain([1.0, 1.0]) == 1.0
    assert jain([1.0, 0.0]) == 0.5
    assert quantile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert (slurm_time(0.2), slurm_time(61.0), slurm_time(3600.5)) == ("00:00:01", "00:01:01", "01:00:01")
