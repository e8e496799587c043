"""The built-in workloads, drawn from data/*.toml with a seed.

The same name, seed and overrides give the same jobs on every machine. The data files hold the parameters with their
sources. We fixed them before we saw any result.
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
    """The parameters of a built-in workload that a user may change.

    `load` is relative to the simulated devices, so it does not change with their number. `math.inf` submits all jobs at
    once.
    """

    seed: int = 1
    load: float | None = None
    job_count: int | None = None
    device_count: int | None = None


def built_in_names() -> tuple[str, ...]:
    return tuple(_BUILDERS)


def built_in(name: str, draw: Draw) -> tuple[Workload, ...]:
    """Draw the workload `name`. `sweep` gives one workload per model, each with its own simulation."""
    family = name.partition(":")[0]
    if family not in _BUILDERS:
        raise RequestError(
            f"read workload: {name}: no built-in workload of that name and no such file; "
            f"use one of {', '.join(_BUILDERS)} or the path of a CSV file"
        )
    text = (files("nodedaemon.sim") / "data" / f"{family}.toml").read_text(encoding="utf-8")
    parameters = tomllib.loads(text)
    if draw.load is not None and "load" not in parameters:
        raise RequestError(f"read workload: {name}: its jobs have fixed submit times; leave out --load")
    if draw.job_count is not None and "job_count" not in parameters:
        raise RequestError(f"read workload: {name}: its jobs are fixed; leave out --jobs")
    return tuple(_BUILDERS[family](name, parameters, draw))


def _workload(name: str, parameters: Parameters, jobs: list[Job], *shown: str, **computed: str | float) -> Workload:
    """The workload of `jobs`. Its caption lists the parameters named in `shown` and the `computed` ones."""
    return Workload(
        name=name,
        jobs=tuple(jobs),
        about=parameters["about"],
        source=parameters["source"],
        device_count=parameters["device_count"],
        node_count=parameters.get("node_count", 1),
        device_bytes=parameters["device_memory_gib"] * GIB,
        turns_per_job=parameters.get("turns_per_job"),
        parameters={"jobs": len(jobs), **computed, **{key: parameters[key] for key in shown}},
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


def _length_ns(rng: random.Random, parameters: Parameters) -> int:
    sigma = float(parameters["length_sigma"])
    mu = math.log(parameters["length_mean_s"]) - sigma * sigma / 2
    length_s: float = min(max(rng.lognormvariate(mu, sigma), parameters["length_min_s"]), parameters["length_max_s"])
    return round(length_s * SECOND_NS)


def _heavy_tailed(name: str, parameters: Parameters, draw: Draw) -> Iterable[Workload]:
    """Jobs of random models, lognormal lengths and Poisson arrivals: `paper` and `cluster`."""
    # S311: a seed must always give the same workload, and nothing here is secret.
    rng = random.Random(draw.seed)  # noqa: S311
    load = parameters["load"] if draw.load is None else draw.load
    job_count = draw.job_count or parameters["job_count"]
    device_count = draw.device_count or parameters["device_count"]
    shares = {int(count): percent for count, percent in parameters.get("devices_percent", {"1": 100}).items()}
    mean_devices = sum(count * percent for count, percent in shares.items()) / sum(shares.values())
    gap_s = parameters["length_mean_s"] * mean_devices / (load * device_count)
    rows, at_ns, jobs = timed_models(), 0, []
    for number in range(1, job_count + 1):
        model = rng.choice(rows)
        length_ns = _length_ns(rng, parameters)
        # Draw the gap even if all jobs are submitted at once, so that a seed gives the same jobs at every load.
        gap = rng.expovariate(1.0)
        at_ns += 0 if math.isinf(load) else round(gap * gap_s * SECOND_NS)
        count = rng.choices(list(shares), list(shares.values()))[0]
        user = f"user{rng.randrange(parameters.get('user_count', 1))}"
        jobs.append(_job(number, at_ns, model, length_ns, device_count=count, user=user, account=user))
    work_s = sum(job.work_ns * job.device_count for job in jobs) / SECOND_NS
    span_s = max(at_ns / SECOND_NS, 1.0)
    drawn: dict[str, str | float] = {
        "load": load,
        "load_drawn": round(work_s / span_s / device_count, 3),
        "arrival_gap_mean_s": round(gap_s, 3),
    }
    if math.isinf(load):
        drawn |= {"load": "all at once", "load_drawn": "all at once", "arrival_gap_mean_s": 0.0}
    lengths = ("length_mean_s", "length_sigma", "length_min_s", "length_max_s")
    yield _workload(name, parameters, jobs, *lengths, seed=draw.seed, **drawn)


def _sweep(name: str, parameters: Parameters, draw: Draw) -> Iterable[Workload]:
    wanted = name.partition(":")[2]
    if wanted and wanted not in parameters["models"]:
        raise RequestError(f"read workload: {name}: unknown model; use one of {', '.join(parameters['models'])}")
    job_count = draw.job_count or parameters["job_count"]
    for model_name in [wanted] if wanted else parameters["models"]:
        assumed_ms = parameters["assumed_iteration_ms"].get(model_name)
        model = _timed(model_name, assumed_ms)
        assert model.iteration_ns is not None
        length_ns = model.iteration_ns * parameters["iteration_count"]
        jobs = [_job(number, 0, model, length_ns) for number in range(1, job_count + 1)]
        time_key = "iteration_ms" if assumed_ms is None else "iteration_ms_assumed"
        computed: dict[str, str | float] = {
            "model": model_name,
            "iterations_per_job": parameters["iteration_count"],
            time_key: model.iteration_ns / MILLISECOND_NS,
        }
        yield _workload(f"sweep:{model_name}", parameters, jobs, **computed)


def _inference(name: str, parameters: Parameters, draw: Draw) -> Iterable[Workload]:
    rng = random.Random(draw.seed)  # noqa: S311
    served = [model for model in models().values() if model.kind == "inference"]
    jobs = []
    for number, model in enumerate([m for m in served for _ in range(parameters["copies"])], start=1):
        factors = [rng.uniform(1.0, parameters["request_factor_max"]) for _ in range(parameters["request_count"])]
        offsets, at_s = [], 0.0
        for factor in factors:
            at_s += parameters["request_interval_s"] * factor
            offsets.append(round(at_s * SECOND_NS))
        timed = _timed(model.name, parameters["assumed_iteration_ms"])
        assert timed.iteration_ns is not None
        length_ns = timed.iteration_ns * len(offsets)
        jobs.append(_job(number, 0, timed, length_ns, request_offsets_ns=tuple(offsets)))
    yield _workload(
        name,
        parameters,
        jobs,
        "copies",
        "request_interval_s",
        "request_factor_max",
        seed=draw.seed,
        models=len(served),
        requests_per_job=parameters["request_count"],
        iteration_ms_assumed=parameters["assumed_iteration_ms"],
    )


def _fairness(name: str, parameters: Parameters, draw: Draw) -> Iterable[Workload]:
    model = models()[parameters["model"]]
    gap_ns, length_ns = round(parameters["join_interval_s"] * SECOND_NS), round(parameters["length_s"] * SECOND_NS)
    job_count = draw.job_count or parameters["job_count"]
    jobs = [_job(number + 1, number * gap_ns, model, length_ns) for number in range(job_count)]
    assert all(earlier.submit_ns < later.submit_ns for earlier, later in pairwise(jobs))
    yield _workload(name, parameters, jobs, "length_s", "join_interval_s", model=model.name)


def _switch(name: str, parameters: Parameters, _draw: Draw) -> Iterable[Workload]:
    long, short = models()[parameters["long_model"]], models()[parameters["short_model"]]
    lengths_ns = [round(parameters[key] * SECOND_NS) for key in ("long_length_s", "short_length_s")]
    submit_ns, job_class = round(parameters["short_submit_s"] * SECOND_NS), JobClass[parameters["short_class"].upper()]
    jobs = [_job(1, 0, long, lengths_ns[0]), _job(2, submit_ns, short, lengths_ns[1], job_class=job_class)]
    shown = ("long_model", "long_length_s", "short_model", "short_length_s", "short_submit_s", "short_class")
    yield _workload(name, parameters, jobs, *shown)


_BUILDERS: dict[str, Callable[[str, Parameters, Draw], Iterable[Workload]]] = {
    "paper": _heavy_tailed,
    "sweep": _sweep,
    "inference": _inference,
    "fairness": _fairness,
    "switch": _switch,
    "cluster": _heavy_tailed,
}
