"""Prints the results of `salus simulate`, with everything that the figures depend on."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from cli.output.render import Cell, Form, parse_columns, write_json, write_rows
from nodedaemon.core.types import GIB, MIB
from nodedaemon.sim.job_queue import Spread
from nodedaemon.sim.results import RunResult, quantile
from nodedaemon.sim.run import Prepared

COLUMNS = parse_columns(
    "name=Policy gpus_needed=GPUs> average_completion_s=Average> median_completion_s=Median> p95_completion_s=p95> "
    "average_queueing_s=Queueing> makespan_s=Makespan> speedup_over_exclusive=Gain> jain_average=Jain> "
    "hand_overs=Hand-overs>"
)
#: Only for scripts: a terminal is not wide enough.
MORE_COLUMNS = parse_columns("jain_minimum=Jain_minimum lane_openings=Openings")
SPREAD_COLUMNS = parse_columns(
    "name=Policy minimum=Min> first_quartile=25_%> median=Median> third_quartile=75_%> maximum=Max>"
)


NOTES = """
GPUs: number of devices that hold all jobs at once. Completion, queueing and makespan are in seconds.
Gain: average completion of exclusive / of this row. Jain: index of service, computed after five rounds."""


def _rows(results: list[RunResult]) -> list[dict[str, Cell]]:
    """The results as rows, with the gain over `exclusive` on the same workload."""
    alone = {o.workload: o.average_completion_s for o in results if o.name == "exclusive"}
    return [
        {**asdict(o), "speedup_over_exclusive": alone[o.workload] / max(o.average_completion_s, 1e-9)} for o in results
    ]


def gains_of(runs: list[list[RunResult]]) -> list[dict[str, Cell]]:
    """How the gain in average completion time over `exclusive` varies between seeds."""
    gains: dict[tuple[str, str], list[float]] = {}
    for results in runs:
        for row in _rows(results):
            gain = row["speedup_over_exclusive"]
            assert isinstance(gain, float)
            gains.setdefault((str(row["workload"]), str(row["name"])), []).append(gain)
    return [
        {
            "workload": workload,
            "name": name,
            **{column.key: quantile(values, number / 4) for number, column in enumerate(SPREAD_COLUMNS[1:])},
        }
        for (workload, name), values in gains.items()
    ]


def _basis(run: Prepared, pair_speed: Path | None) -> dict[str, Any]:
    """Everything that the figures of a workload depend on."""
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
    caveats = [
        "iterations that run at once share the device's throughput without gain"
        if setting.pair_speeds is None
        else "pairs run at their measured speeds; pairs without a measurement run at half speed each",
        "hand-overs, opening lanes and releasing memory take no time",
        "srtf knows each job's remaining time exactly",
        "jobs wait in order of submission, smaller jobs may go first if they fit, and there are no reservations",
        "a job goes to the least loaded device, as in newer Slurm releases with LL_SHARED_GRES"
        if setting.spread is Spread.LEAST_LOADED
        else "a job goes to the first device with room",
    ]
    if setting.turns_per_job is not None:
        caveats.append(
            f"iterations are combined into at most {setting.turns_per_job} turns per job; waits at boundaries grow"
        )
    if any(job.device_count > 1 for job in run.jobs):
        caveats.append("jobs with several GPUs get whole devices, outside Salus")
    return caveats


def write_report(
    form: Form,
    runs: list[Prepared],
    results: list[RunResult],
    gains: list[dict[str, Cell]],
    seeds: int,
    pair_speed: Path | None,
) -> None:
    """Print the results in `form`. `gains` covers `seeds` other seeds. `pair_speed` is the file of speeds, if any."""
    rows = _rows(results)
    workloads = [_basis(run, pair_speed) for run in runs]
    if form is Form.JSON:
        write_json({"workloads": workloads, "policies": rows, "spread": gains, "spread_seeds": seeds})
        return
    if form is not Form.TABLE:
        write_rows(rows, (*parse_columns("workload=Workload"), *COLUMNS, *MORE_COLUMNS), form)
        return
    for workload in workloads:
        name = workload["name"]
        _write_heading(workload)
        write_rows([_shown(row) for row in rows if row["workload"] == name], COLUMNS, form)
        part = [_shown(row) for row in gains if row["workload"] == name]
        if part:
            print(f"\nGain over {seeds} other seeds:")
            write_rows(part, SPREAD_COLUMNS, form)
        print(NOTES)
        for caveat in workload["caveats"]:
            print(f"- {caveat}")
        print()


def _write_heading(workload: dict[str, Any]) -> None:
    setting = workload["setting"]
    print(f"{workload['name']}: {workload['about']}")
    print("  " + ", ".join(f"{key} {value}" for key, value in workload["parameters"].items()))
    reserve = f"{setting['lane_reserve_bytes'] / MIB:g} MiB{' (auto)' if setting['lane_reserve_is_auto'] else ''}"
    print(
        f"  {setting['gpus']} GPUs of {setting['gpu_memory_bytes'] / GIB:g} GiB on {setting['nodes']} nodes, "
        f"lane reserve {reserve}, up to {setting['max_lanes']} lanes, shared by {setting['lane_sharing']}, "
        f"unit {setting['shard_unit_bytes'] / MIB:g} MiB, headroom {setting['headroom_percent']} %, "
        f"context {setting['context_bytes'] / MIB:g} MiB; MB of the published table read as MiB"
    )
    print(f"  source: {workload['source']}\n")


def _shown(row: dict[str, Cell]) -> dict[str, Cell]:
    """The row with rounded numbers, for a table."""
    shown = dict(row)
    for key, value in row.items():
        if isinstance(value, float):
            digits = 3 if key.startswith("jain") else 2 if not key.endswith("_s") else 1 if value < 1000 else 0
            shown[key] = f"{value:.{digits}f}"
    return shown
