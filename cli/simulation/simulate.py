"""`salus simulate`: what a policy would do, before it runs anywhere.

Drives the engine of the daemon in virtual time (nodedaemon.sim). Everything that the figures rest on is printed with
them: parameters of the workload, memory rules, and what is assumed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.output.render import Cell, Column, Form, form_of, write_json, write_rows
from nodedaemon.config.kinds import Size, SizeOrAuto
from nodedaemon.core.errors import RequestError
from nodedaemon.core.policies import POLICIES
from nodedaemon.core.types import GIB, MIB, LaneSharing
from nodedaemon.sim.line import Spread

if TYPE_CHECKING:
    from nodedaemon.sim.results import RunResult
    from nodedaemon.sim.run import Prepared, Progress, SimulationSetup
    from nodedaemon.sim.workload import Workload

COLUMNS = (
    Column("name", "Policy"),
    Column("gpus_needed", "GPUs", "right"),
    Column("average_completion_s", "Average", "right"),
    Column("median_completion_s", "Median", "right"),
    Column("p95_completion_s", "p95", "right"),
    Column("average_queueing_s", "Queueing", "right"),
    Column("makespan_s", "Makespan", "right"),
    Column("speedup_over_exclusive", "Gain", "right"),
    Column("jain_average", "Jain", "right"),
    Column("hand_overs", "Hand-overs", "right"),
)
#: For scripts, which have no width.
MORE_COLUMNS = (Column("jain_minimum", "Jain minimum"), Column("lane_openings", "Openings"))
SPREAD_COLUMNS = (
    Column("name", "Policy"),
    Column("minimum", "Min", "right"),
    Column("first_quartile", "25 %", "right"),
    Column("median", "Median", "right"),
    Column("third_quartile", "75 %", "right"),
    Column("maximum", "Max", "right"),
)
EPILOG = (
    "Built-in workloads: paper, sweep (or sweep:MODEL), inference, fairness, switch, cluster. The baselines exclusive, "
    "exclusive-sjf and peak are always run beside the policies. docs/policies.md explains the columns of FILE.csv."
)
DEFAULT_POLICIES = ",".join(POLICIES)


_WorkloadName = Annotated[
    str | None, typer.Option("--workload", "-w", metavar="NAME|FILE.csv", help="Built-in workload, or table of jobs.")
]
_Sacct = Annotated[
    Path | None, typer.Option("--from-sacct", metavar="FILE", help="Take the jobs from the output of sacct -P.")
]
_Policies = Annotated[str, typer.Option("--policy", "-p", metavar="LIST", help="Policies to run, separated by commas.")]
_Devices = Annotated[int | None, typer.Option("--gpus", min=1, max=1_000_000, help="Devices in all.")]
_Nodes = Annotated[int | None, typer.Option("--nodes", min=1, help="Nodes that the devices are spread over.")]
_Memory = Annotated[
    str | None, typer.Option("--gpu-memory", metavar="SIZE", help="Usable memory of a device, such as 16G.")
]
_Reserve = Annotated[str, typer.Option("--lane-reserve", metavar="SIZE|auto", help="LaneReserve, as in salus.conf.")]
_LanesMax = Annotated[int, typer.Option("--max-lanes", min=1, max=64, help="MaxLanes, as in salus.conf.")]
_Sharing = Annotated[LaneSharing, typer.Option("--lane-sharing", help="LaneSharing, as in salus.conf.")]
_Spread = Annotated[
    Spread, typer.Option("--spread", help="Device that a job gets: as Slurm with or without LL_SHARED_GRES.")
]
_Context = Annotated[
    str, typer.Option("--context", metavar="SIZE", help="CUDA context that each job holds, such as 300M.")
]
_Load = Annotated[
    str | None, typer.Option("--load", metavar="X|all", help="Offered load of paper and cluster; all: at once.")
]
_Jobs = Annotated[int | None, typer.Option("--jobs", min=1, help="Number of jobs of a built-in workload.")]
_Seed = Annotated[int, typer.Option("--seed", help="Seed of all that is drawn.")]
_Seeds = Annotated[
    int, typer.Option("--seeds", min=0, max=10_000, help="Also run so many other seeds and print the spread.")
]
_Turns = Annotated[
    int | None, typer.Option("--turns-per-job", min=1, help="Lump iterations into at most so many turns a job.")
]
_StartupWeight = Annotated[
    float,
    typer.Option("--startup-weight", min=0, max=1e6, help="Of a start on the device's cores against an iteration."),
]
_Headroom = Annotated[
    int, typer.Option("--headroom", min=0, max=1000, help="Percent that admission adds to measured memory.")
]
_PairSpeed = Annotated[
    Path | None, typer.Option("--pair-speed", metavar="FILE.csv", help="Measured speeds: model,beside,speed.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_Replay = Annotated[
    Path | None, typer.Option("--replay", metavar="JOURNAL", help="Repeat a salusd's journal; -P: only the summary.")
]
_Parsable = Annotated[bool, typer.Option("--parsable", "-P", help="Print rows separated by bars.")]


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
    json: _Json = False,
    parsable: _Parsable = False,
    replay: _Replay = None,
) -> None:
    """Simulate policies on a workload: completion times, fairness, and how many GPUs it needs.

    Nothing is touched: the engine of the daemon runs in virtual time, on jobs that are drawn, tabled or taken from
    Slurm's accounting. With --replay a journal of salusd is taken through the engine again, decision by decision.
    """
    if replay is not None:
        from cli.simulation.replay import replay_journal

        replay_journal(replay, is_json=json, is_quiet=parsable)
        return
    form = form_of(json=json, parsable=parsable)
    policies = _policies(policy)
    chosen = _Choice(workload, from_sacct, _load_of(load), jobs, gpus)
    memory_bytes = None if gpu_memory is None else _size("--gpu-memory", gpu_memory)
    asked: dict[str, Any] = {
        "lane_reserve_bytes": _reserve(lane_reserve),
        "lanes_max": lanes_max,
        "lane_sharing": lane_sharing,
        "spread": spread,
        "context_bytes": _size("--context", context),
        "pair_speeds": _pair_speeds(pair_speed),
        "startup_weight": startup_weight,
        "headroom_percent": headroom,
    }

    def prepared(with_seed: int) -> list[Prepared]:
        drawn = chosen.draw(with_seed)
        return _prepared((one, _setting(one, gpus, nodes, memory_bytes, turns_per_job, asked)) for one in drawn)

    runs = prepared(seed)
    with _progress(shown=form is Form.TABLE) as progress:
        outcomes = _run(runs, policies, progress)
        gains = _gains([_run(prepared(other), policies, progress) for other in range(seed + 1, seed + 1 + seeds)])
    _write(form, runs, outcomes, gains, seeds, pair_speed)


def _prepared(chosen: Iterable[tuple[Workload, SimulationSetup]]) -> list[Prepared]:
    from nodedaemon.sim.run import prepare

    return [prepare(workload, setting) for workload, setting in chosen]


def _policies(text: str) -> tuple[str, ...]:
    policies = tuple(name.strip() for name in text.split(",") if name.strip())
    if not policies:
        raise RequestError("simulate: --policy: name at least one policy, such as fair")
    return policies


class _Choice:
    """Which jobs to simulate; drawn anew for each seed."""

    def __init__(
        self, workload: str | None, from_sacct: Path | None, load: float | None, jobs: int | None, gpus: int | None
    ) -> None:
        if (workload is None) == (from_sacct is None):
            raise RequestError("simulate: give --workload NAME|FILE.csv or --from-sacct FILE, and only one of them")
        self._workload, self._from_sacct, self._load, self._jobs, self._gpus = workload, from_sacct, load, jobs, gpus
        is_built_in = workload is not None and workload.partition(":")[0] in _built_in_names()
        if not is_built_in and (load is not None or jobs is not None):
            raise RequestError("simulate: --load and --jobs change built-in workloads only; leave them out")

    def draw(self, seed: int) -> tuple[Workload, ...]:
        from nodedaemon.sim.builtin import Draw, built_in
        from nodedaemon.sim.sacct import read_sacct
        from nodedaemon.sim.tables import read_workload

        if self._from_sacct is not None:
            return (read_sacct(self._from_sacct, seed),)
        assert self._workload is not None
        path = Path(self._workload)
        is_path = path.suffix or len(path.parts) > 1 or path.is_file()
        if is_path and self._workload.partition(":")[0] not in _built_in_names():
            return (read_workload(path),)
        return built_in(self._workload, Draw(seed, self._load, self._jobs, self._gpus))


def _built_in_names() -> tuple[str, ...]:
    from nodedaemon.sim.builtin import built_in_names

    return built_in_names()


def _setting(
    drawn: Workload,
    gpus: int | None,
    nodes: int | None,
    memory_bytes: int | None,
    turns_per_job: int | None,
    asked: dict[str, Any],
) -> SimulationSetup:
    from nodedaemon.sim.run import SimulationSetup

    device_count = gpus or drawn.device_count
    node_count = min(nodes or drawn.node_count, device_count)
    return SimulationSetup(
        device_bytes=memory_bytes or drawn.device_bytes or 16 * GIB,
        device_count=device_count,
        node_count=node_count,
        turns_per_job=turns_per_job or drawn.turns_per_job,
        **asked,
    )


def _run(runs: list[Prepared], policies: tuple[str, ...], progress: Progress | None) -> list[RunResult]:
    from nodedaemon.sim.run import simulate as simulate_prepared

    return [outcome for run in runs for outcome in simulate_prepared(run, policies, progress)]


def _size(option: str, text: str) -> int:
    try:
        return Size().parse(text)
    except ValueError as error:
        raise RequestError(f"simulate: {option} {error}") from None


def _reserve(text: str) -> int | None:
    try:
        return SizeOrAuto().parse(text)
    except ValueError as error:
        raise RequestError(f"simulate: --lane-reserve {error}") from None


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
        raise RequestError(f"simulate: --load {text}: not a number above 0, nor all; use such as 1.5")
    return value


def _pair_speeds(path: Path | None) -> dict[tuple[str, str], float] | None:
    from nodedaemon.sim.tables import read_pair_speeds

    return None if path is None else read_pair_speeds(path)


@contextmanager
def _progress(*, shown: bool) -> Iterator[Progress | None]:
    """A bar on stderr, for a person who waits; nothing for a pipe."""
    if not shown or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulate", total=None)

        def told(name: str, ended_count: int, job_count: int) -> None:
            bar.update(task, description=name, completed=ended_count, total=job_count)

        yield told


def _rows(outcomes: list[RunResult]) -> list[dict[str, Cell]]:
    """Outcomes as rows, with the gain over `exclusive` on the same workload."""
    alone = {o.workload: o.average_completion_s for o in outcomes if o.name == "exclusive"}
    return [
        {**asdict(o), "speedup_over_exclusive": alone[o.workload] / max(o.average_completion_s, 1e-9)} for o in outcomes
    ]


def _gains(runs: list[list[RunResult]]) -> list[dict[str, Cell]]:
    """How the gain over `exclusive` in average completion varies from seed to seed."""
    from nodedaemon.sim.results import quantile

    gains: dict[tuple[str, str], list[float]] = {}
    for outcomes in runs:
        for row in _rows(outcomes):
            gain = row["speedup_over_exclusive"]
            assert isinstance(gain, float)
            gains.setdefault((str(row["workload"]), str(row["name"])), []).append(gain)
    return [
        {
            "workload": workload,
            "name": name,
            "minimum": min(values),
            "first_quartile": quantile(values, 0.25),
            "median": quantile(values, 0.5),
            "third_quartile": quantile(values, 0.75),
            "maximum": max(values),
        }
        for (workload, name), values in gains.items()
    ]


def _told(run: Prepared, pair_speed: Path | None) -> dict[str, Any]:
    """What the figures of a workload rest on."""
    setting, drawn = run.setup, run.workload
    return {
        "name": drawn.name,
        "about": drawn.about,
        "source": drawn.source,
        "parameters": drawn.parameters,
        "setting": {
            "gpus": setting.device_count,
            "nodes": setting.node_count,
            "gpu_memory_bytes": setting.device_bytes,
            "lane_reserve_bytes": run.lane_reserve_bytes,
            "lane_reserve_is_auto": setting.lane_reserve_bytes is None,
            "max_lanes": setting.lanes_max,
            "lane_sharing": setting.lane_sharing.value,
            "spread": setting.spread.value,
            "shard_unit_bytes": setting.unit_bytes,
            "headroom_percent": setting.headroom_percent,
            "context_bytes": setting.context_bytes,
            "turns_per_job": setting.turns_per_job,
            "startup_weight": setting.startup_weight,
            "pair_speed": None if pair_speed is None else str(pair_speed),
        },
        "caveats": [*drawn.caveats, *_caveats(run)],
    }


def _caveats(run: Prepared) -> list[str]:
    setting = run.setup
    told = [
        "iterations that run at once share the device's throughput without gain"
        if setting.pair_speeds is None
        else "pairs go at the measured speeds, pairs not measured at one half each",
        "hand-overs, opening of lanes and release of memory take no time",
        "srtf knows each job's remaining time exactly",
        "the queue before the devices goes by submit time, smaller jobs may fill, no reservations",
        "a job goes to the least loaded device, as by LL_SHARED_GRES of newer releases of Slurm"
        if setting.spread is Spread.LEAST_LOADED
        else "a job goes to the first device with room",
    ]
    if setting.turns_per_job is not None:
        told.append(f"iterations are lumped into at most {setting.turns_per_job} turns a job; waits at boundaries grow")
    if any(job.device_count > 1 for job in run.jobs):
        told.append("jobs of several GPUs take them whole, outside Salus")
    return told


def _write(
    form: Form,
    runs: list[Prepared],
    outcomes: list[RunResult],
    gains: list[dict[str, Cell]],
    seeds: int,
    pair_speed: Path | None,
) -> None:
    rows = _rows(outcomes)
    told = [_told(run, pair_speed) for run in runs]
    if form is Form.JSON:
        write_json({"workloads": told, "policies": rows, "spread": gains, "spread_seeds": seeds})
        return
    if form is not Form.TABLE:
        write_rows(rows, (Column("workload", "Workload"), *COLUMNS, *MORE_COLUMNS), form)
        return
    for workload in told:
        name = workload["name"]
        _write_heading(workload)
        write_rows([_shown(row) for row in rows if row["workload"] == name], COLUMNS, form)
        part = [_shown(row) for row in gains if row["workload"] == name]
        if part:
            print(f"\nGain over {seeds} other seeds:")
            write_rows(part, SPREAD_COLUMNS, form)
        print()
        print("GPUs: devices that hold all jobs at once. Times in seconds: completion, queueing, makespan.")
        print(
            "Gain: average completion of exclusive / this one. Jain: of service, averaged over spells of five rounds."
        )
        for caveat in workload["caveats"]:
            print(f"- {caveat}")
        print()


def _write_heading(told: dict[str, Any]) -> None:
    setting = told["setting"]
    print(f"{told['name']}: {told['about']}")
    print("  " + ", ".join(f"{key} {value}" for key, value in told["parameters"].items()))
    reserve = f"{setting['lane_reserve_bytes'] / MIB:g} MiB{' (auto)' if setting['lane_reserve_is_auto'] else ''}"
    print(
        f"  {setting['gpus']} GPUs of {setting['gpu_memory_bytes'] / GIB:g} GiB on {setting['nodes']} nodes, "
        f"lane reserve {reserve}, up to {setting['max_lanes']} lanes, shared by {setting['lane_sharing']}, "
        f"unit {setting['shard_unit_bytes'] / MIB:g} MiB, headroom {setting['headroom_percent']} %, "
        f"context {setting['context_bytes'] / MIB:g} MiB; MB of the published table read as MiB"
    )
    print(f"  source: {told['source']}\n")


def _shown(row: dict[str, Cell]) -> dict[str, Cell]:
    """A row for people: as many digits as can matter."""
    shown = dict(row)
    for key, value in row.items():
        if isinstance(value, float):
            if key.endswith("_s"):
                shown[key] = f"{value:.1f}" if value < 1000 else f"{value:.0f}"
            else:
                shown[key] = f"{value:.3f}" if key.startswith("jain") else f"{value:.2f}"
    return shown
