"""The pictures of docs/pictures, drawn from simulator runs: `make pictures` writes them, a test compares them.

Plain SVG without a library, so that the same run gives the same bytes everywhere. Colour-blind readers can distinguish
the colours, which work on light and dark pages. Each job also has a letter.
"""

import sys
from dataclasses import replace
from pathlib import Path

from nodedaemon.core.types import GIB, SECOND_NS, JobClass, JobId
from nodedaemon.sim.builtin import Draw, built_in
from nodedaemon.sim.device import SimulationSetup
from nodedaemon.sim.run import prepare, run_baseline, run_policy
from nodedaemon.sim.workload import Job, Workload

COLOURS = ("#0072b2", "#e69f00", "#009e73")
INK, PALE, PAPER = "#333333", "#dddddd", "#ffffff"
POLICIES = ("fifo", "srtf", "fair", "pack", "priority")
FONT = 'font-family="sans-serif" font-size="13"'

#: Three jobs that fit on one device: A is long, B is shorter and arrives later, C is short and of class high.
JOBS = (
    Job(JobId("A"), 0, 4 * GIB, 4 * GIB, SECOND_NS // 2, 36),
    Job(JobId("B"), 3 * SECOND_NS, 3 * GIB, 4 * GIB, SECOND_NS // 2, 16),
    Job(JobId("C"), 6 * SECOND_NS, 1 * GIB, 2 * GIB, SECOND_NS // 4, 12, job_class=JobClass.HIGH),
)


def turns_of(jobs, policy, device_bytes=16 * GIB):
    """The turns of the jobs on one device under a policy."""
    turns = []
    setting = SimulationSetup(device_bytes, lane_reserve_bytes=4 * GIB)
    run_policy(prepare(Workload("three", jobs, device_bytes=device_bytes), setting), policy, on_turn=turns.append)
    return turns


def alone(jobs):
    """The same jobs, each of which needs the whole device, as with gres/gpu."""
    return tuple(replace(job, persistent_bytes=12 * GIB, ephemeral_bytes=1 * GIB) for job in jobs)


def text(x, y, words, *, anchor="start", weight="normal", fill=INK):
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-weight="{weight}" fill="{fill}" {FONT}>{words}</text>'
    )


def box(x, y, width, height, fill):
    return f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.6):.2f}" height="{height:g}" fill="{fill}"/>'


def page(width, height, title, parts):
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">'
    return "\n".join([head, f"<title>{title}</title>", box(0, 0, width, height, PAPER), *parts, "</svg>", ""])


def draw_turns():
    """One panel per policy: a row for each job, a bar for each turn, a line from its submission to its end."""
    left, scale, row, width = 150, 24.0, 20, 900
    panels = [("gres/gpu", turns_of(alone(JOBS), "fifo")), *((name, turns_of(JOBS, name)) for name in POLICIES)]
    parts, y = [], 14
    for name, turns in panels:
        ends_s = [
            max(turn.end_ns for turn in turns if turn.number == number) / SECOND_NS for number in range(len(JOBS))
        ]
        waits = [end_s - job.submit_ns / SECOND_NS for end_s, job in zip(ends_s, JOBS, strict=True)]
        parts.append(text(10, y + 16, name, weight="bold"))
        parts.append(text(10, y + 34, f"average {sum(waits) / len(waits):.1f} s"))
        for number, job in enumerate(JOBS):
            top = y + number * row
            begin = left + job.submit_ns / SECOND_NS * scale
            parts.append(text(left - 10, top + 14, job.id, anchor="end"))
            parts.append(box(begin, top + 9, ends_s[number] * scale + left - begin, 2, PALE))
            for turn in turns:
                if turn.number == number:
                    x = left + turn.start_ns / SECOND_NS * scale
                    long = (turn.end_ns - turn.start_ns) / SECOND_NS * scale
                    parts.append(box(x, top + 3, long - 0.4, 14, COLOURS[number]))
        y += len(JOBS) * row + 18
    for second in range(0, 31, 5):
        x = left + second * scale
        parts.insert(0, f'<line x1="{x:g}" y1="8" x2="{x:g}" y2="{y - 8}" stroke="{PALE}" stroke-width="1"/>')
        parts.append(text(x, y + 8, f"{second} s", anchor="middle"))
    return page(width, y + 20, "Three jobs on one device: who runs when, by policy", parts)


def draw_bars(title, rows, unit, note):
    """A horizontal bar for each row, with its value."""
    left, width, row = 150, 900, 28
    most = max(value for _, value, _ in rows)
    parts = []
    for place, (name, value, is_ours) in enumerate(rows):
        y = 12 + place * row
        long = (width - left - 110) * value / most
        parts.append(text(left - 10, y + 15, name, anchor="end"))
        parts.append(box(left, y, long, 20, COLOURS[0] if is_ours else COLOURS[1]))
        parts.append(text(left + max(long, 0.6) + 8, y + 15, f"{value:,.0f} {unit}"))
    height = 12 + len(rows) * row + 30
    parts.append(text(left, height - 12, note))
    return page(width, height, title, parts)


def draw_completion():
    """Average completion time of a hundred jobs that arrive over time on one device."""
    workload = built_in("paper", Draw(1, None, None, None))[0]
    prepared = prepare(workload, SimulationSetup(workload.device_bytes))
    rows = [(name, run_baseline(prepared, name).average_completion_s, False) for name in ("exclusive", "peak")]
    rows += [(name, run_policy(prepared, name).average_completion_s, True) for name in ("fifo", "fair", "srtf")]
    return draw_bars(
        "Average completion time of 100 jobs on one GPU", rows, "s", "salus simulate --workload paper (seed 1)"
    )


def draw_devices():
    """The number of devices that 42 model servers need."""
    workload = built_in("inference", Draw(1, None, None, None))[0]
    prepared = prepare(workload, SimulationSetup(14 * GIB, context_bytes=300 * 1024 * 1024))
    rows = [(name, run_baseline(prepared, name).gpus_needed, False) for name in ("exclusive", "peak")]
    rows.append(("Salus", run_policy(prepared, "fair").gpus_needed, True))
    note = "salus simulate --workload inference --gpu-memory 14G --context 300M"
    return draw_bars("GPUs that 42 model servers need", rows, "GPUs", note)


PICTURES = {"policies.svg": draw_turns, "completion.svg": draw_completion, "devices.svg": draw_devices}


def main(directory):
    for name, draw in PICTURES.items():
        (Path(directory) / name).write_text(draw())
        print(f"pictures: {Path(directory) / name}", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
