"""The simulator: merging iterations changes no result, a job that fits never waits, any file is read or refused."""

from contextlib import suppress
from typing import ClassVar
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodedaemon.core.engine import Engine
from nodedaemon.core.errors import RequestError
from nodedaemon.core.policies import POLICIES
from nodedaemon.core.state import invariants
from nodedaemon.core.types import GIB, MIB, MILLISECOND_NS, SECOND_NS, JobClass, JobId, LaneSharing
from nodedaemon.sim import gated_device
from nodedaemon.sim.device import SimulationSetup
from nodedaemon.sim.job_queue import DevicePool, JobQueue, MinimumTree, Spread, bins_needed
from nodedaemon.sim.run import prepare, run_policy
from nodedaemon.sim.sacct import read_sacct
from nodedaemon.sim.tables import read_pair_speeds, read_workload
from nodedaemon.sim.workload import Job, Workload, by_submission


@st.composite
def jobs(draw):
    def one(number):
        count = draw(st.integers(1, 30))
        offsets = None
        if draw(st.integers(0, 3)) == 0:
            offsets = tuple(sorted(draw(st.lists(st.integers(0, 20 * SECOND_NS), min_size=count, max_size=count))))
        return Job(
            id=JobId(str(number)),
            submit_ns=draw(st.integers(0, 10) | st.integers(0, 10 * SECOND_NS)),
            persistent_bytes=draw(st.integers(1, 300)) * MIB,
            ephemeral_bytes=draw(st.integers(1, 1200)) * MIB,
            iteration_ns=draw(st.integers(1, 50) | st.integers(1, 900).map(lambda n: n * MILLISECOND_NS)),
            iteration_count=count,
            user=draw(st.sampled_from(["ann", "bob", "eve"])),
            job_class=draw(st.sampled_from(list(JobClass))),
            weight=draw(st.integers(1, 4)),
            request_offsets_ns=offsets,
        )

    return by_submission(one(number) for number in range(draw(st.integers(1, 6))))


class WatchedEngine(Engine):
    """Records every event with its commands and checks the invariants after each."""

    story: ClassVar[list] = []

    def handle(self, event, now_ns):
        commands = super().handle(event, now_ns)
        invariants.check(self)
        self.story.append((now_ns, event, commands))
        return commands


def story_of(workload, setting, policy):
    with patch.object(gated_device, "Engine", WatchedEngine):
        WatchedEngine.story = []
        result = run_policy(prepare(workload, setting), policy)
        return WatchedEngine.story, result


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=jobs(), devices=st.integers(1, 2), lanes=st.integers(1, 4), sharing=st.sampled_from(list(LaneSharing)))
def test_iterations_simulated_together_give_the_same_result_as_single_ones(policy, drawn, devices, lanes, sharing):
    workload = Workload("drawn", drawn)
    together, single = (
        SimulationSetup(2 * GIB, devices, lanes_max=lanes, lane_sharing=sharing, is_single_step=is_single_step)
        for is_single_step in (False, True)
    )
    story, result = story_of(workload, together, policy)
    single_story, single_result = story_of(workload, single, policy)
    assert story == single_story
    assert (result.average_completion_s, result.makespan_s, result.hand_overs, result.jain_average) == pytest.approx(
        (
            single_result.average_completion_s,
            single_result.makespan_s,
            single_result.hand_overs,
            single_result.jain_average,
        )
    )


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(max_examples=25, deadline=None)
@given(drawn=jobs())
def test_all_work_is_done_in_no_less_than_its_time(policy, drawn):
    batch = [job for job in drawn if job.request_offsets_ns is None]
    if not batch:
        return
    result = run_policy(prepare(Workload("drawn", tuple(batch)), SimulationSetup(2 * GIB)), policy)
    busy_until_ns = 0
    for job in batch:
        busy_until_ns = max(busy_until_ns, job.submit_ns) + job.work_ns
    least_s = (busy_until_ns - batch[0].submit_ns) / SECOND_NS
    assert result.makespan_s >= least_s - 1e-6
    # These policies run one session at a time and never leave the device idle while a job waits.
    if policy in ("fifo", "srtf"):
        assert result.makespan_s == pytest.approx(least_s)


@settings(max_examples=200, deadline=None)
@given(values=st.lists(st.integers(0, 20), min_size=1, max_size=40), bound=st.integers(-1, 21))
def test_the_leftmost_value_that_is_small_enough_is_found(values, bound):
    row = MinimumTree(len(values))
    for place, value in enumerate(values):
        row.put(place, value)
    assert row.first_at_most(bound) == next((n for n, value in enumerate(values) if value <= bound), None)


@settings(max_examples=200, deadline=None)
@given(charges=st.lists(st.integers(1, 10), max_size=40))
def test_packing_is_within_the_known_bound_of_first_fit_decreasing(charges):
    needed = bins_needed(charges, 10)
    assert -(-sum(charges) // 10) <= needed <= max(1, 2 * -(-sum(charges) // 10)) if charges else needed == 0


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_a_job_that_fits_never_waits_and_no_device_is_overbooked(data):
    count = data.draw(st.integers(1, 20))
    nodes = data.draw(st.integers(1, 3))
    devices = nodes * data.draw(st.integers(1, 3))
    charges = data.draw(st.lists(st.integers(1, 10), min_size=count, max_size=count))
    widths = data.draw(st.lists(st.integers(1, devices), min_size=count, max_size=count))
    pool = DevicePool(devices, nodes, 10, data.draw(st.sampled_from(list(Spread))))
    queue = JobQueue(charges, widths, pool)
    running, waiting, unseen = {}, set(), list(range(count))

    def started(place, taken):
        assert len(set(taken)) == widths[place]
        running[place] = taken

    while unseen or running:
        if unseen and (not running or data.draw(st.booleans())):
            place = unseen.pop(0)
            taken = queue.submit(place)
            if taken is None:
                waiting.add(place)
            else:
                started(place, taken)
        else:
            ended = data.draw(st.sampled_from(sorted(running)))
            for place, taken in queue.release(ended, running.pop(ended)):
                waiting.remove(place)
                started(place, taken)
        used = [0] * devices
        for place, taken in running.items():
            for device in taken:
                used[device] += charges[place] if widths[place] == 1 else 10
        assert [pool.free(device) for device in range(devices)] == [10 - units for units in used]
        for place in waiting:
            if widths[place] == 1:
                assert all(10 - units < charges[place] for units in used)
    assert not waiting


READERS = [read_workload, read_pair_speeds, lambda path: read_sacct(path, 1)]
HEADERS = [
    "job,submit_s,model,persistent_mb,ephemeral_mb,iteration_ms,iterations,length_s,class,weight,gpus\n",
    "model,beside,speed\n",
    "JobID|Submit|Elapsed|AllocTRES|AdminComment\n",
]
CELLS = st.sampled_from(
    ["", "1", "-1", "1e400", "nan", "inf", "resnet50_50", "vae_64", "0.5", "gres/gpu=1", "gres/gpu=", "1-00:00:01",
     "2026-01-31T12:00:00", "9999-99-99", "salus:1;P=5;E=x", "٣", "²", "high", '"', "\x00"]
) | st.text(max_size=4)  # fmt: skip


@pytest.mark.parametrize("kind", range(3))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.lists(CELLS, min_size=1, max_size=12), max_size=5), noise=st.binary(max_size=20))
def test_any_file_is_read_or_refused_with_a_reason(tmp_path, kind, rows, noise):
    separator = "|" if kind == 2 else ","
    path = tmp_path / "any"
    text = HEADERS[kind] + "".join(separator.join(row) + "\n" for row in rows)
    for content in (text.encode("utf-8", errors="surrogatepass") + noise, noise):
        path.write_bytes(content)
        with suppress(RequestError):
            READERS[kind](path)
