"""Small runs of baselines and policies whose times can be computed by hand."""

import pytest

from nodedaemon.core.errors import RequestError
from nodedaemon.core.types import GIB, MIB, SECOND_NS, JobId
from nodedaemon.sim.device import SimulationSetup
from nodedaemon.sim.run import prepare, run_baseline, run_policy, simulate
from nodedaemon.sim.workload import Job, Workload


def job(name, submit_s, count, *, persistent=100, ephemeral=1000, iteration_s=1, **more):
    return Job(
        JobId(name),
        round(submit_s * SECOND_NS),
        persistent * MIB,
        ephemeral * MIB,
        iteration_s * SECOND_NS,
        count,
        **more,
    )


def prepared(*jobs, **setting):
    return prepare(Workload("hand", jobs), SimulationSetup(**{"device_bytes": 2 * GIB, **setting}))


def test_exclusive_runs_one_after_another():
    result = run_baseline(prepared(job("a", 0, 10), job("b", 1, 4)), "exclusive")
    assert (result.average_completion_s, result.average_queueing_s, result.makespan_s) == (11.5, 4.5, 14)
    assert result.gpus_needed == 2


def test_exclusive_sjf_runs_the_shortest_waiting_job():
    jobs = (job("a", 0, 10), job("b", 1, 8), job("c", 2, 2))
    assert run_baseline(prepared(*jobs), "exclusive").average_completion_s == pytest.approx((10 + 17 + 18) / 3)
    assert run_baseline(prepared(*jobs), "exclusive-sjf").average_completion_s == pytest.approx((10 + 19 + 10) / 3)


def test_jobs_that_fit_by_peak_share_the_throughput():
    # Both peaks are 900 MiB, so two fit in 2 GiB: a alone for 1 s, then each at half speed until b is done at 9 s.
    pair = (job("a", 0, 10, ephemeral=800), job("b", 1, 4, ephemeral=800))
    result = run_baseline(prepared(*pair), "peak")
    assert (result.gpus_needed, result.makespan_s, result.average_completion_s) == (1, 14, (14 + 8) / 2)


def test_a_job_that_does_not_fit_by_peak_waits():
    result = run_baseline(prepared(job("a", 0, 10), job("b", 1, 4)), "peak")
    assert (result.gpus_needed, result.average_completion_s) == (2, 11.5)


def test_several_devices_run_side_by_side():
    result = run_baseline(prepared(job("a", 0, 10), job("b", 0, 10), device_count=2), "exclusive")
    assert (result.makespan_s, result.average_completion_s) == (10, 10)


def test_a_job_of_several_devices_takes_them_whole_under_every_policy():
    jobs = (job("a", 0, 10, device_count=2), job("b", 0, 5))
    run = prepared(*jobs, device_count=2)
    for result in simulate(run, ("fair", "srtf")):
        assert result.makespan_s == 15
    assert run_baseline(run, "exclusive").gpus_needed == 3


def test_srtf_lets_the_short_job_overtake_at_the_next_boundary():
    # a is in its third iteration when b comes; b runs from 3 s to 5 s.
    result = run_policy(prepared(job("a", 0, 10), job("b", 2.5, 2)), "srtf")
    assert (result.average_completion_s, result.average_queueing_s, result.makespan_s) == ((12 + 2.5) / 2, 0.25, 12)
    assert result.gpus_needed == 1


def test_pack_runs_lanes_side_by_side_at_half_speed():
    pair = (job("a", 0, 10, ephemeral=800), job("b", 0, 10, ephemeral=800))
    result = run_policy(prepared(*pair), "pack")
    assert (result.makespan_s, result.average_completion_s, result.hand_overs) == (20, 20, 0)


def test_measured_pairs_run_at_their_measured_speed():
    pair = (job("a", 0, 9, ephemeral=800, model="x"), job("b", 0, 9, ephemeral=800, model="y"))
    speeds = {("x", "y"): 0.9, ("y", "x"): 0.9}
    assert run_policy(prepared(*pair, pair_speeds=speeds), "pack").makespan_s == pytest.approx(10, abs=1e-6)
    assert run_baseline(prepared(*pair, pair_speeds=speeds), "peak").makespan_s == pytest.approx(10, abs=1e-6)


def test_a_server_holds_no_lane_between_requests():
    requests = tuple(second * SECOND_NS for second in (1, 10, 20))
    server = job("s", 0, 3, request_offsets_ns=requests)
    result = run_policy(prepared(job("a", 0, 30), server), "fair")
    # 30 s of training and 3 s of requests never wait for an idle holder.
    assert result.makespan_s == 33
    assert result.average_request_wait_ms is not None
    assert result.average_request_wait_ms <= 2000
    alone = run_baseline(prepared(server), "exclusive")
    assert (alone.makespan_s, alone.average_request_wait_ms) == (21, 0)


def test_merged_iterations_keep_the_work_and_limit_the_boundaries():
    run = prepared(job("a", 0, 1000), turns_per_job=7)
    assert run.jobs[0].iteration_count == 7
    assert run_policy(run, "fair").makespan_s == pytest.approx(1000, abs=1e-6)


def test_a_context_is_charged_to_every_job():
    plain, heavy = prepared(job("a", 0, 1)), prepared(job("a", 0, 1), context_bytes=160 * MIB)
    assert heavy.charges[0] == plain.charges[0] + 10
    assert heavy.peak_charges[0] == plain.peak_charges[0] + 10


def test_all_jobs_that_fit_no_device_are_listed_and_nothing_runs():
    jobs = (job("big", 0, 1, ephemeral=4000), job("fine", 0, 1), job("wide", 0, 1, device_count=3))
    with pytest.raises(RequestError) as caught:
        prepared(*jobs)
    result = str(caught.value).splitlines()
    assert "2 jobs fit no device, so nothing was run" in result[0]
    assert result[1].startswith("job big: memory of device any:")
    assert result[2] == "job wide: devices: 3 needed, 1 available"


def test_a_reserve_as_large_as_the_device_is_refused():
    with pytest.raises(RequestError, match="lane reserve"):
        prepared(job("a", 0, 1), lane_reserve_bytes=2 * GIB)


def test_an_unknown_policy_is_refused_with_a_list_of_policies():
    with pytest.raises(RequestError, match="policy fare: unknown; use any of fair, fifo"):
        simulate(prepared(job("a", 0, 1)), ("fare",))


def test_progress_counts_ended_jobs():
    seen = []
    simulate(prepared(job("a", 0, 1), job("b", 0, 1)), ("fifo",), lambda *result: seen.append(result))
    assert seen[:2] == [("fifo", 1, 2), ("fifo", 2, 2)]
    assert {name for name, _, _ in seen} == {"fifo", "exclusive", "exclusive-sjf", "peak"}


def test_a_job_that_starts_up_holds_an_exclusive_device_but_no_lane():
    jobs = (job("a", 0, 10, startup_ns=2 * SECOND_NS), job("b", 0, 4, startup_ns=2 * SECOND_NS))
    run = prepared(*jobs)
    # Exclusive: b starts up after a has ended. With srtf, both are ready at 2 s, and b waits for one iteration of a.
    assert run_baseline(run, "exclusive").average_completion_s == (12 + 18) / 2
    assert run_policy(run, "srtf").average_completion_s == (7 + 16) / 2


def test_a_job_that_starts_up_on_the_device_uses_part_of_its_throughput():
    jobs = (job("a", 0, 10, ephemeral=800), job("b", 1, 3, ephemeral=800, startup_ns=2 * SECOND_NS))
    # a alone for 1 s; then the start of b takes half of 4 s; b runs from a's next boundary at 6 s to 9 s.
    result = run_policy(prepared(*jobs, startup_weight=1.0), "srtf")
    assert (result.makespan_s, result.average_completion_s, result.average_queueing_s) == (15, (15 + 8) / 2, 2.5)
    # Both at half speed from 1 s on: b is ready at 5 s and done at 11 s.
    peak = run_baseline(prepared(*jobs, startup_weight=1.0), "peak")
    assert (peak.makespan_s, peak.average_completion_s) == (15, (15 + 10) / 2)
    # With three times the weight the start takes three quarters of 8/3 s.
    quick = run_baseline(prepared(*jobs, startup_weight=3.0), "peak")
    assert quick.average_queueing_s == pytest.approx((8 / 3) / 2)
