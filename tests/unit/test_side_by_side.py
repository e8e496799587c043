"""The side-by-side's jobs and figures: the same for a seed, and worked out by hand."""

import os

import pytest

from tests.bench.sidebyside import in_turn
from tests.support import mix
from tests.support.mix_simulation import (
    Demand,
    Forecast,
    as_it_ran,
    beside_cluster,
    followers,
    learned,
    like,
    startups_s,
)
from tests.support.slurm_mix import Ended, figures, machine_cpu_s, quantile, slurm_time

ITERATION_MS = {"small": 40.0, "medium": 70.0, "large": 125.0, "huge": 185.0}


def ended(name, submitted, first, end, iterations_s, *, node="node1", cpu_s=0.0, beside_cpu_s=0.0, spans=()):
    report = {"first": first, "cpu_s": iterations_s, "spans": spans}
    return Ended(name, submitted, end, node, report, cpu_s, beside_cpu_s=beside_cpu_s)


def test_a_seed_gives_the_same_jobs():
    jobs = mix.mix(ITERATION_MS)
    assert jobs == mix.mix(ITERATION_MS, mix.SEED)
    assert len(jobs) >= 24
    assert [job.is_long for job in jobs[: mix.LONG_COUNT + 1]] == [True] * mix.LONG_COUNT + [False]
    assert len({job.kind.name for job in jobs}) == len(mix.KINDS)
    assert [job.submit_s for job in jobs] == sorted(job.submit_s for job in jobs)


def test_lengths_are_those_of_the_paper_workload():
    lengths_s = mix.lengths_s(1001)
    # A lognormal with a mean of 180 s and sigma 2 has its median at 180 / e^2 = 24.36 s.
    assert lengths_s[500] == pytest.approx(24.36 / mix.SCALE, rel=1e-3)
    assert (lengths_s[0], lengths_s[-1]) == (pytest.approx(10 / mix.SCALE), mix.LONG_S)
    drawn = sorted(job.length_s for job in mix.mix(ITERATION_MS) if not job.is_long)
    assert drawn == [round(length_s, 3) for length_s in mix.lengths_s(len(drawn))]


def test_a_faster_machine_does_more_iterations_of_the_same_lengths():
    twice_as_fast = {kind: time_ms / 2 for kind, time_ms in ITERATION_MS.items()}
    jobs, faster = mix.mix(ITERATION_MS, seed=1), mix.mix(twice_as_fast, seed=1)
    assert [(job.submit_s, job.length_s) for job in faster] == [(job.submit_s, job.length_s) for job in jobs]
    assert (jobs[0].kind.name, jobs[0].iterations, faster[0].iterations) == ("small", 1875, 3750)
    assert min(job.iterations for job in jobs) == mix.ITERATIONS_MIN
    shorter = mix.mix(ITERATION_MS, seed=1, scale=0.1)
    assert (shorter[0].iterations, shorter[-1].submit_s) == (188, pytest.approx(jobs[-1].submit_s / 10, abs=0.001))


def test_a_random_order_keeps_jobs_and_times():
    jobs, shuffled = mix.mix(ITERATION_MS), mix.mix(ITERATION_MS, in_random_order=True)
    assert [job.submit_s for job in shuffled] == [job.submit_s for job in jobs]
    assert sorted(job.name for job in shuffled) == sorted(job.name for job in jobs)
    assert [job.name for job in shuffled] != [job.name for job in jobs]


def test_the_figures_of_two_jobs_are_those_computed_by_hand():
    jobs = {"a": ended("a", 100.0, 103.0, 110.0, 6.0), "b": ended("b", 102.0, 104.0, 122.0, 5.0)}
    report = figures(jobs, {"a": 5.0, "b": 5.0}, device_count=2)
    assert (report["average_s"], report["makespan_s"], report["queueing_s"]) == (15.0, 22.0, 2.5)
    assert report["busy_share"] == pytest.approx(11 / 44)
    assert report["slowdown"] == 3.0
    assert report["jain"] == pytest.approx((0.5 + 0.25) ** 2 / (2 * (0.25 + 0.0625)))
    assert report["completion_s"] == [10.0, 20.0]


def test_a_job_that_waited_for_a_device_held_it_from_the_end_of_the_previous_job():
    jobs = [
        ended("a", 0.0, 2.0, 10.0, 6.0),
        ended("b", 3.0, 12.0, 16.0, 3.0),
        ended("late", 20.0, 22.0, 25.0, 3.0),
        ended("other", 1.0, 4.0, 12.0, 3.0, node="node2"),
    ]
    assert [(job.name, held_s) for job, held_s in followers({job.name: job for job in jobs})] == [("b", 6.0)]


SIDE = {
    "startup_s": 3.0,
    "startup_cpu_s": 2.0,
    "iteration_ms": 1.0,
    "queued_s": 1.0,
    "latency_s": 0.5,
    "beside_cpu_s": 0.25,
}
KINDS = {
    kind.name: {f"{at}_{key}": value for at in ("plain", "known") for key, value in SIDE.items()}
    | {"persistent_mib": 160.0, "ephemeral_mib": 256.0}
    for kind in mix.KINDS
}
SMALL, HUGE = mix.KINDS[0], mix.KINDS[-1]
JOBS = [
    mix.Planned("a", SMALL, 0.0, 1.0, is_long=False, iterations=25),
    mix.Planned("b", HUGE, 0.0, 1.0, is_long=False, iterations=5),
]
RAN = {
    "a": ended("a", 0.0, 2.0, 9.0, 5.0, cpu_s=7.0, beside_cpu_s=0.5, spans=[5.5]),
    "b": ended("b", 1.0, 9.0, 19.0, 6.0, cpu_s=9.0, beside_cpu_s=0.5, spans=[8.0]),
}


def test_shared_cores_are_measured_in_cpu_time():
    assert as_it_ran("srtf", KINDS, JOBS, RAN) == [
        Demand(2.0, 5000.0 / 25, 0.5, 0.5),
        Demand(3.0, 6000.0 / 5, 0.5, 0.5),
    ]


def test_whole_devices_are_measured_in_wall_clock_time():
    """Only the second job waited, so its start counts for both: it held the device for ten seconds after the first."""
    assert startups_s("gpu", JOBS, [RAN]) == dict.fromkeys((kind.name for kind in mix.KINDS), 2.0)
    assert as_it_ran("gpu", KINDS, JOBS, RAN)[1] == Demand(2.0, 8000.0 / 5, 0.0)


def test_history_comes_from_the_same_side():
    ran = dict.fromkeys(("gpu", "gpu-shortest", "shard", "fifo", "srtf"), RAN)
    assert set(like("gpu", ran)) == {"gpu", "gpu-shortest", "shard"}
    assert set(like("fair", ran)) == {"fifo", "srtf"}
    by_kind = learned("gpu", KINDS, JOBS, {"gpu-shortest": RAN, "shard": RAN})
    # Wall-clock time in one, CPU time in the other. A kind that neither had comes from its run alone.
    assert by_kind["small"] == Demand(2.0, (5500.0 + 5000.0) / 50, 0.0)
    assert by_kind["medium"] == Demand(2.0, 1.0, 0.0)
    assert learned("gpu", KINDS, JOBS, {"shard": RAN}) is None
    assert learned("fair", KINDS, JOBS, {"srtf": RAN})["huge"] == Demand(3.0, 1200.0, 0.5, 0.5)


def test_the_clusters_own_work_slows_the_devices_by_its_share():
    asked = []

    def simulated(slowness):
        asked.append(slowness)
        return Forecast(4.0 * slowness, 10.0 * slowness)

    # Four seconds of other work on two cores in ten seconds: a fifth of the cores.
    report = beside_cluster(simulated, [Demand(1.0, 1.0, 0.5, 2.0)] * 2)
    assert asked == [1.0, 1.25]
    assert report == Forecast(5.5, 13.0)
    asked.clear()
    assert beside_cluster(simulated, [Demand(1.0, 1.0, 0.0)] * 2) == Forecast(4.0, 10.0)
    assert asked == [1.0]


def test_runs_of_a_series_begin_with_different_configurations():
    names = ["gpu", "gpu-shortest", "shard", "fifo", "srtf", "fair", "pack"]
    orders = [in_turn(names, number) for number in range(1, 8)]
    assert orders[0] == names
    assert {order[0] for order in orders} == set(names)
    assert all(sorted(order) == sorted(names) for order in orders)


def test_the_machines_processor_time_grows_with_work():
    before = machine_cpu_s()
    own = sum(os.times()[:2])
    while sum(os.times()[:2]) - own < 0.1:
        pass
    assert machine_cpu_s() - before >= 0.05


def test_quantiles_and_times_are_computed():
    assert quantile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert (slurm_time(0.2), slurm_time(61.0), slurm_time(3600.5)) == ("00:00:01", "00:01:01", "01:00:01")
