"""The built-in workloads follow their data files, and a seed always gives the same jobs."""

import math
from statistics import fmean

import pytest

from nodedaemon.core.errors import RequestError
from nodedaemon.core.types import GIB, MIB, SECOND_NS, JobClass
from nodedaemon.sim.builtin import Draw, built_in
from nodedaemon.sim.models import models, timed_models


def paper(**settings):
    (workload,) = built_in("paper", Draw(**settings))
    return workload


def test_the_published_table_is_complete():
    assert len(models()) == 68
    assert len(timed_models()) == 33
    assert models()["resnet50_50"].ephemeral_bytes == math.ceil(6217.6 * MIB)


def test_a_seed_gives_the_same_jobs():
    assert paper(seed=3) == paper(seed=3)
    assert paper(seed=3).jobs != paper(seed=4).jobs


def test_a_seed_gives_the_same_jobs_at_every_load():
    slow, fast, at_once = paper(load=0.5), paper(load=1.0), paper(load=math.inf)
    for one, two, three in zip(slow.jobs, fast.jobs, at_once.jobs, strict=True):
        assert one.model == two.model == three.model
        assert one.iteration_count == two.iteration_count == three.iteration_count
        assert one.submit_ns == pytest.approx(2 * two.submit_ns, abs=100)
        assert three.submit_ns == 0


def test_paper_follows_its_parameters():
    workload = paper()
    assert (len(workload.jobs), workload.device_count, workload.device_bytes) == (100, 1, 16 * GIB)
    assert {job.model for job in workload.jobs} <= {model.name for model in timed_models()}
    for job in workload.jobs:
        assert 10 * SECOND_NS - job.iteration_ns <= job.work_ns <= 7200 * SECOND_NS + job.iteration_ns
    assert workload.parameters["load"] == 1.5
    many = paper(job_count=5000)
    gaps = [later.submit_ns - earlier.submit_ns for earlier, later in zip(many.jobs, many.jobs[1:], strict=False)]
    assert fmean(gaps) / SECOND_NS == pytest.approx(120, rel=0.05)
    # The median of a lognormal with sigma 2 and mean 180 is 180 / e^2.
    lengths = sorted(job.work_ns / SECOND_NS for job in many.jobs)
    assert lengths[2500] == pytest.approx(180 / math.e**2, rel=0.1)


def test_the_load_is_relative_to_the_simulated_devices():
    one, two = paper(device_count=1), paper(device_count=2)
    assert one.jobs[-1].submit_ns == pytest.approx(2 * two.jobs[-1].submit_ns, abs=100)


def test_sweep_is_three_workloads_of_equal_jobs():
    workloads = built_in("sweep", Draw())
    assert [workload.name for workload in workloads] == ["sweep:vae_64", "sweep:superres_128", "sweep:resnet50_50"]
    for workload in workloads:
        assert {(job.submit_ns, job.iteration_count) for job in workload.jobs} == {(0, 500)}
        assert len(workload.jobs) == 300
    assert built_in("sweep:resnet50_50", Draw()) == workloads[2:]


def test_inference_is_fourteen_models_three_times():
    (workload,) = built_in("inference", Draw())
    assert len(workload.jobs) == 42
    assert len({job.model for job in workload.jobs}) == 14
    for job in workload.jobs:
        offsets = job.request_offsets_ns
        assert len(offsets) == 500
        gaps = [later - earlier for earlier, later in zip((0, *offsets), offsets, strict=False)]
        assert 10 * SECOND_NS <= min(gaps) < max(gaps) <= 30 * SECOND_NS


def test_switch_is_a_short_job_of_a_higher_class_beside_a_long_one():
    (workload,) = built_in("switch", Draw())
    long, short = workload.jobs
    assert long.work_ns > 10 * short.work_ns
    assert long.submit_ns < short.submit_ns < long.work_ns
    assert short.job_class is JobClass.HIGH


def test_cluster_has_jobs_of_several_devices_and_users():
    (workload,) = built_in("cluster", Draw(job_count=1000))
    assert (workload.node_count, workload.device_count, workload.turns_per_job) == (1200, 6200, 20)
    assert {job.device_count for job in workload.jobs} == {1, 2, 4, 8}
    assert len({job.user for job in workload.jobs}) > 150


@pytest.mark.parametrize("name", ["papers", "sweep:resnet51"])
def test_an_unknown_name_is_refused_with_a_list_of_names(name):
    with pytest.raises(RequestError, match=r"resnet50_50|paper, sweep"):
        built_in(name, Draw())
