"""`salus simulate`: shows what a policy would do before it runs anywhere.

The command drives the daemon's engine in virtual time (nodedaemon.sim). `cli.simulation.report` prints the results.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.entry import parse_option
from cli.output.render import Form, Json, form_of
from nodedaemon.config.kinds import Size, SizeOrAuto
from nodedaemon.core.errors import RequestError
from nodedaemon.core.policies import POLICIES
from nodedaemon.core.types import GIB, LaneSharing
from nodedaemon.sim.job_queue import Spread

if TYPE_CHECKING:
    from nodedaemon.sim.device import SimulationSetup
    from nodedaemon.sim.results import RunResult
    from nodedaemon.sim.run import Prepared, Progress
    from nodedaemon.sim.workload import Workload

EPILOG = (
    "Built-in workloads: paper, sweep (or sweep:MODEL), inference, fairness, switch, cluster. The baselines exclusive, "
    "exclusive-sjf and peak always run as well. docs/policies.md explains the columns of FILE.csv."
)
DEFAULT_POLICIES = ",".join(POLICIES)


_WorkloadName = Annotated[
    str | None, typer.Option("--workload", "-w", metavar="NAME|FILE.csv", help="Built-in workload, or table of jobs.")
]
_Sacct = Annotated[
    Path | None, typer.Option("--from-sacct", metavar="FILE", help="Read the jobs from the output of sacct -P.")
]
_Policies = Annotated[str, typer.Option("--policy", "-p", metavar="LIST", help="Policies to run, separated by commas.")]
_Devices = Annotated[int | None, typer.Option("--gpus", min=1, max=1_000_000, help="Total number of devices.")]
_Nodes = Annotated[int | None, typer.Option("--nodes", min=1, help="Number of nodes that have the devices.")]
_Memory = Annotated[
    str | None, typer.Option("--gpu-memory", metavar="SIZE", help="Usable memory of a device, such as 16G.")
]
_Reserve = Annotated[
    str,
    typer.Option("--lane-reserve", metavar="SIZE|auto", help="LaneReserve. auto: the value that packs the jobs best."),
]
_LanesMax = Annotated[int, typer.Option("--max-lanes", min=1, max=64, help="MaxLanes, as in salus.conf.")]
_Sharing = Annotated[LaneSharing, typer.Option("--lane-sharing", help="LaneSharing, as in salus.conf.")]
_Spread = Annotated[
    Spread, typer.Option("--spread", help="Device for a job: least-loaded, as with LL_SHARED_GRES in Slurm, or first.")
]
_Context = Annotated[
    str, typer.Option("--context", metavar="SIZE", help="Size of the CUDA context of each job, such as 300M.")
]
_Load = Annotated[
    str | None,
    typer.Option("--load", metavar="X|all", help="Offered load of paper and cluster. all: submit all jobs at once."),
]
_Jobs = Annotated[int | None, typer.Option("--jobs", min=1, help="Number of jobs in a built-in workload.")]
_Seed = Annotated[int, typer.Option("--seed", help="Random seed.")]
_Seeds = Annotated[
    int, typer.Option("--seeds", min=0, max=10_000, help="Also run this many other seeds and print the spread.")
]
_Turns = Annotated[
    int | None, typer.Option("--turns-per-job", min=1, help="Combine iterations into at most this many turns per job.")
]
_StartupWeight = Annotated[
    float,
    typer.Option(
        "--startup-weight",
        min=0,
        max=1e6,
        help="CPU time that a job takes from iterations while it starts up, relative to an iteration.",
    ),
]
_Headroom = Annotated[
    int, typer.Option("--headroom", min=0, max=1000, help="Percent that admission adds to measured memory.")
]
_PairSpeed = Annotated[
    Path | None,
    typer.Option("--pair-speed", metavar="FILE.csv", help="Measured speeds, in the columns model, beside and speed."),
]
_Replay = Annotated[
    Path | None,
    typer.Option("--replay", metavar="JOURNAL", help="Replay a journal of salusd. -P prints only the summary."),
]
_Parsable = Annotated[bool, typer.Option("--parsable", "-P", help="Print columns separated by |.")]


def simulate(
    workload: _WorkloadName = None,
    from_sacct: _Sacct = None,
    policy: _Policies = DEFAULT_POLICIES,
    gpus: _Devices = None,
    nodes: _Nodes = None,
    gpu_memory: _Memory = None,
    lane_reserve: _Reserve = "auto",
    lanes_max: _LanesMax = 4,
    lane_sharing: _Sharing = LaneSharing.USER,
    spread: _Spread = Spread.LEAST_LOADED,
    context: _Context = "0",
    load: _Load = None,
    jobs: _Jobs = None,
    seed: _Seed = 1,
    seeds: _Seeds = 0,
    turns_per_job: _Turns = None,
    startup_weight: _StartupWeight = 0.0,
    headroom: _Headroom = 0,
    pair_speed: _PairSpeed = None,
    json: Json = False,
    parsable: _Parsable = False,
    replay: _Replay = None,
) -> None:
    """Simulate policies on a workload: completion times, fairness, and the number of GPUs that it needs.

    The daemon's engine runs in virtual time and changes nothing on the system. Jobs are drawn at random, read from
    a table, or read from the output of sacct. With --replay, the engine repeats the decisions in a journal of salusd.
    """
    if replay is not None:
        from cli.simulation.replay import replay_journal

        replay_journal(replay, is_json=json, is_quiet=parsable)
        return
    from cli.simulation.report import gains_of, write_report
    from nodedaemon.sim.device import SimulationSetup
    from nodedaemon.sim.tables import read_pair_speeds

    form = form_of(json=json, parsable=parsable)
    policies = _policies(policy)
    draw = _workload_source(workload, from_sacct, _load_of(load), jobs, gpus)
    options = SimulationSetup(
        device_bytes=0 if gpu_memory is None else parse_option("simulate", "--gpu-memory", Size(), gpu_memory),
        device_count=gpus or 0,
        node_count=nodes or 0,
        turns_per_job=turns_per_job,
        lane_reserve_bytes=parse_option("simulate", "--lane-reserve", SizeOrAuto(), lane_reserve),
        lanes_max=lanes_max,
        lane_sharing=lane_sharing,
        spread=spread,
        context_bytes=parse_option("simulate", "--context", Size(), context),
        pair_speeds=None if pair_speed is None else read_pair_speeds(pair_speed),
        startup_weight=startup_weight,
        headroom_percent=headroom,
    )
    runs = _prepare(draw(seed), options)
    with _progress(shown=form is Form.TABLE) as progress:
        results = _run(runs, policies, progress)
        gains = gains_of([_run(_prepare(draw(seed + n), options), policies, progress) for n in range(1, seeds + 1)])
    write_report(form, runs, results, gains, seeds, pair_speed)


def _prepare(workloads: Iterable[Workload], options: SimulationSetup) -> list[Prepared]:
    """Prepare workloads. Options that are 0 or None stand for a workload's own value."""
    from nodedaemon.sim.run import prepare

    runs = []
    for workload in workloads:
        device_count = options.device_count or workload.device_count
        setup = replace(
            options,
            device_bytes=options.device_bytes or workload.device_bytes or 16 * GIB,
            device_count=device_count,
            node_count=min(options.node_count or workload.node_count, device_count),
            turns_per_job=options.turns_per_job or workload.turns_per_job,
        )
        runs.append(prepare(workload, setup))
    return runs


def _run(runs: Iterable[Prepared], policies: tuple[str, ...], progress: Progress | None) -> list[RunResult]:
    from nodedaemon.sim.run import simulate as run_policies

    return [result for run in runs for result in run_policies(run, policies, progress)]


def _policies(text: str) -> tuple[str, ...]:
    policies = tuple(name.strip() for name in text.split(",") if name.strip())
    if not policies:
        raise RequestError("simulate: --policy: name at least one policy, such as fair")
    return policies


def _workload_source(
    workload: str | None, from_sacct: Path | None, load: float | None, jobs: int | None, gpus: int | None
) -> Callable[[int], tuple[Workload, ...]]:
    """A function that returns the workloads to simulate for a seed."""
    from nodedaemon.sim.builtin import Draw, built_in, built_in_names
    from nodedaemon.sim.sacct import read_sacct
    from nodedaemon.sim.tables import read_workload

    if (workload is None) == (from_sacct is None):
        raise RequestError("simulate: use either --workload NAME|FILE.csv or --from-sacct FILE")
    is_built_in = workload is not None and workload.partition(":")[0] in built_in_names()
    if not is_built_in and (load is not None or jobs is not None):
        raise RequestError("simulate: --load and --jobs change built-in workloads only; leave them out")
    if from_sacct is not None:
        return lambda seed: (read_sacct(from_sacct, seed),)
    assert workload is not None
    path = Path(workload)
    if not is_built_in and (path.suffix or len(path.parts) > 1 or path.is_file()):
        return lambda _seed: (read_workload(path),)
    return lambda seed: built_in(workload, Draw(seed, load, jobs, gpus))


def _load_of(text: str | None) -> float | None:
    if text is None:
        return None
    if text.lower() == "all":
        return math.inf
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not math.isfinite(value) or value <= 0:
        raise RequestError(f"simulate: --load {text}: neither a number above 0 nor all; use a value such as 1.5")
    return value


@contextmanager
def _progress(*, shown: bool) -> Iterator[Progress | None]:
    """A progress bar on stderr if it is a terminal."""
    if not shown or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulate", total=None)

        def update(name: str, ended_count: int, job_count: int) -> None:
            bar.update(task, description=name, completed=ended_count, total=job_count)

        yield update
