"""The built-in workloads, drawn from data/*.toml with a seed.

The same name, seed and overrides give the same jobs on every machine. Parameters live in the data files with their
sources; they were fixed before any result was seen.
"""

from __future__ import annotations

import math
import random
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from typing import Any

from nodedaemon.core.errors import RequestError
from nodedaemon.core.types import GIB, MILLISECOND_NS, SECOND_NS, JobClass, JobId
from nodedaemon.sim.models import Model, models, timed_models
from nodedaemon.sim.workload import Job, Workload

Parameters = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Draw:
    """What the user may change of a built-in workload.

    `load` is offered to the devices simulated, so it stays the same when their number changes; `math.inf` submits all
    jobs at once.
    """

    seed: int = 1
    load: float | None = None
    job_count: int | None = None
    device_count: int | None = None


def built_in_names() -> tuple[str, ...]:
    return tuple(_BUILDERS)


def built_in(name: str, draw: Draw) -> tuple[Workload, ...]:
    """Draw the workload `name`; `sweep` is several, one a model, that are simulated apart."""
    family = name.partition(":")[0]
    if family not in _BUILDERS:
        raise RequestError(
            f"read workload: {name}: no built-in workload of that name and no such file; "
            f"use one of {', '.join(_BUILDERS)} or the path of a CSV file"
        )
    text = (files("nodedaemon.sim") / "data" / f"{family}.toml").read_text(encoding="utf-8")
    given = tomllib.loads(text)
    if draw.load is not None and "load" not in given:
        raise RequestError(f"read workload: {name}: its jobs have fixed times of submission; leave --load out")
    if draw.job_count is not None and "job_count" not in given:
        raise RequestError(f"read workload: {name}: its jobs are fixed; leave --jobs out")
    return tuple(_BUILDERS[family](name, given, draw))


def _workload(name: str, given: Parameters, jobs: list[Job], **told: str | float) -> Workload:
    return Workload(
        name=name,
        jobs=tuple(jobs),
        about=given["about"],
        source=given["source"],
        device_count=given["device_count"],
        node_count=given.get("node_count", 1),
        device_bytes=given["device_memory_gib"] * GIB,
        turns_per_job=given.get("turns_per_job"),
        parameters={"jobs": len(jobs), **told},
    )


def _job(number: int, submit_ns: int, model: Model, length_ns: int, **more: Any) -> Job:
    assert model.iteration_ns is not None
    return Job(
        id=JobId(str(number)),
        submit_ns=submit_ns,
        persistent_bytes=model.persistent_bytes,
        ephemeral_bytes=model.ephemeral_bytes,
        iteration_ns=model.iteration_ns,
        iteration_count=max(1, round(length_ns / model.iteration_ns)),
        model=model.name,
        **more,
    )


def _timed(name: str, assumed_ms: float | None = None) -> Model:
    model = models()[name]
    if model.iteration_ns is not None or assumed_ms is None:
        return model
    iteration_ns = round(assumed_ms * MILLISECOND_NS)
    return Model(model.name, model.kind, model.persistent_bytes, model.ephemeral_bytes, iteration_ns)


def _length_ns(dice: random.Random, given: Parameters) -> int:
    sigma = float(given["length_sigma"])
    mu = math.log(given["length_mean_s"]) - sigma * sigma / 2
    length_s: float = min(max(dice.lognormvariate(mu, sigma), given["length_min_s"]), given["length_max_s"])
    return round(length_s * SECOND_NS)


def _heavy_tailed(name: str, given: Parameters, draw: Draw) -> Iterable[Workload]:
    """Jobs of random models, lognormal lengths and Poisson arrivals: `paper` and `cluster`."""
    # S311: a workload must be the same for a seed; nothing here is a secret.
    dice = random.Random(draw.seed)  # noqa: S311
    load = given["load"] if draw.load is None else draw.load
    job_count = draw.job_count or given["job_count"]
    device_count = draw.device_count or given["device_count"]
    shares = {int(count): percent for count, percent in given.get("devices_percent", {"1": 100}).items()}
    mean_devices = sum(count * percent for count, percent in shares.items()) / sum(shares.values())
    gap_s = given["length_mean_s"] * mean_devices / (load * device_count)
    rows, at_ns, jobs = timed_models(), 0, []
    for number in range(1, job_count + 1):
        model = dice.choice(rows)
        length_ns = _length_ns(dice, given)
        # Drawn also when all come at once, so that a seed gives the same jobs at every load.
        gap = dice.expovariate(1.0)
        at_ns += 0 if math.isinf(load) else round(gap * gap_s * SECOND_NS)
        count = dice.choices(list(shares), list(shares.values()))[0]
        user = f"user{dice.randrange(given.get('user_count', 1))}"
        jobs.append(_job(number, at_ns, model, length_ns, device_count=count, user=user, account=user))
    work_s = sum(job.work_ns * job.device_count for job in jobs) / SECOND_NS
    span_s = max(at_ns / SECOND_NS, 1.0)
    yield _workload(
        name,
        given,
        jobs,
        seed=draw.seed,
        load="all at once" if math.isinf(load) else load,
        load_drawn="all at once" if math.isinf(load) else round(work_s / span_s / device_count, 3),
        length_mean_s=given["length_mean_s"],
        length_sigma=given["length_sigma"],
        length_min_s=given["length_min_s"],
        length_max_s=given["length_max_s"],
        arrival_gap_mean_s=0.0 if math.isinf(load) else round(gap_s, 3),
    )


def _sweep(name: str, given: Parameters, draw: Draw) -> Iterable[Workload]:
    wanted = name.partition(":")[2]
    if wanted and wanted not in given["models"]:
        raise RequestError(f"read workload: {name}: unknown model; use one of {', '.join(given['models'])}")
    job_count = draw.job_count or given["job_count"]
    for model_name in [wanted] if wanted else given["models"]:
        assumed_ms = given["assumed_iteration_ms"].get(model_name)
        model = _timed(model_name, assumed_ms)
        assert model.iteration_ns is not None
        length_ns = model.iteration_ns * given["iteration_count"]
        jobs = [_job(number, 0, model, length_ns) for number in range(1, job_count + 1)]
        told: dict[str, str | float] = {"model": model_name, "iterations_per_job": given["iteration_count"]}
        told["iteration_ms" if assumed_ms is None else "iteration_ms_assumed"] = model.iteration_ns / MILLISECOND_NS
        yield _workload(f"sweep:{model_name}", given, jobs, **told)


def _inference(name: str, given: Parameters, draw: Draw) -> Iterable[Workload]:
    dice = random.Random(draw.seed)  # noqa: S311
    served = [model for model in models().values() if model.kind == "inference"]
    jobs = []
    for number, model in enumerate([m for m in served for _ in range(given["copies"])], start=1):
        factors = [dice.uniform(1.0, given["request_factor_max"]) for _ in range(given["request_count"])]
        offsets, at_s = [], 0.0
        for factor in factors:
            at_s += given["request_interval_s"] * factor
            offsets.append(round(at_s * SECOND_NS))
        timed = _timed(model.name, given["assumed_iteration_ms"])
        assert timed.iteration_ns is not None
        length_ns = timed.iteration_ns * len(offsets)
        jobs.append(_job(number, 0, timed, length_ns, request_offsets_ns=tuple(offsets)))
    yield _workload(
        name,
        given,
        jobs,
        seed=draw.seed,
        models=len(served),
        copies=given["copies"],
        requests_per_job=given["request_count"],
        request_interval_s=given["request_interval_s"],
        request_factor_max=given["request_factor_max"],
        iteration_ms_assumed=given["assumed_iteration_ms"],
    )


def _fairness(name: str, given: Parameters, draw: Draw) -> Iterable[Workload]:
    model = models()[given["model"]]
    gap_ns, length_ns = round(given["join_interval_s"] * SECOND_NS), round(given["length_s"] * SECOND_NS)
    job_count = draw.job_count or given["job_count"]
    jobs = [_job(number + 1, number * gap_ns, model, length_ns) for number in range(job_count)]
    assert all(earlier.submit_ns < later.submit_ns for earlier, later in pairwise(jobs))
    yield _workload(
        name, given, jobs, model=model.name, length_s=given["length_s"], join_interval_s=given["join_interval_s"]
    )


def _switch(name: str, given: Parameters, _draw: Draw) -> Iterable[Workload]:
    long, short = models()[given["long_model"]], models()[given["short_model"]]
    short_at_ns = round(given["short_submit_s"] * SECOND_NS)
    jobs = [
        _job(1, 0, long, round(given["long_length_s"] * SECOND_NS)),
        _job(
            2,
            short_at_ns,
            short,
            round(given["short_length_s"] * SECOND_NS),
            job_class=JobClass[given["short_class"].upper()],
        ),
    ]
    yield _workload(
        name,
        given,
        jobs,
        long_model=long.name,
        long_length_s=given["long_length_s"],
        short_model=short.name,
        short_length_s=given["short_length_s"],
        short_submit_s=given["short_submit_s"],
        short_class=given["short_class"],
    )


_BUILDERS: dict[str, Callable[[str, Parameters, Draw], Iterable[Workload]]] = {
    "paper": _heavy_tailed,
    "sweep": _sweep,
    "inference": _inference,
    "fairness": _fairness,
    "switch": _switch,
    "cluster": _heavy_tailed,
}
