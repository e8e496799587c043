"""Jobs share an emulated GPU in lanes, through the whole stack: engine, salusd, cuda driver, libsalus, cuda-python."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from subprocess import Popen

import pytest

from tests.support.cuda_node import LIBSALUS, CudaNode, wait_started
from tests.support.emulator import CONTEXT_BYTES, MIB
from tests.support.salusd import wait_until

CONTEXT = CONTEXT_BYTES["tiny-1g"]
LANE_MIB = 64


@pytest.fixture
def node() -> Iterator[Callable[..., CudaNode]]:
    with contextlib.ExitStack() as nodes:
        yield lambda **options: nodes.enter_context(CudaNode(**options))


def shares(node: CudaNode) -> tuple[int, dict[int, int]]:
    """Used bytes of the device and of each process, read at one moment under the emulator's lock."""
    lines = [dict(part.split("=") for part in line.split() if "=" in part) for line in lines_of(node)]
    used = next(int(line["used_bytes"]) for line in lines if "profile" in line)
    return used, {int(line["pid"]): int(line["used_bytes"]) for line in lines if "pid" in line}


def lines_of(node: CudaNode) -> list[str]:
    return node.emulator.control("show").splitlines()


A100_CONTEXT = CONTEXT_BYTES["a100-40g"]
# Three of these leave 2 GiB of an A100 for a fourth, besides two lanes and the daemon's context.
SHARE_MIB, FOURTH_MIB = 12_400, 1024


def check_arithmetic(node: CudaNode, allowances_mib: dict[int, int]) -> None:
    """Used bytes are the sum over the processes, no job exceeds its limit, and the daemon has its context and lanes."""
    used, by_process = shares(node)
    assert used == sum(by_process.values())
    assert node.process is not None
    for pid, held in by_process.items():
        if pid in allowances_mib:
            assert held <= allowances_mib[pid] * MIB, (pid, held)
    lanes = by_process.get(node.process.pid, A100_CONTEXT) - A100_CONTEXT
    assert lanes in (0, LANE_MIB * MIB, 2 * LANE_MIB * MIB), lanes


@pytest.mark.parametrize("iterations", [150, pytest.param(1000, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
def test_three_jobs_take_turns_in_two_lanes_of_an_a100_and_a_fourth_is_refused(
    node: Callable[..., CudaNode], iterations: int
) -> None:
    """Each job checks its data. Used memory adds up whenever it is read, and is 0 at the end."""
    here = node(devices="a100-40g", config="MaxLanes=2\nHeadroom=0%")
    options = ["--weights-mib", "16", "--activations-mib", "32", "--kernel-us", "50", "--kernels", "1"]
    jobs = [
        here.job("--iterations", str(iterations), *options, *cached, persistent_mib=SHARE_MIB)
        for cached in ((), ("--cached",), ("--cached",))
    ]
    # It needs more than the three leave. Each allocation fails as on a full device, and the job continues.
    fourth = here.job(
        "--iterations", "20", "--weights-mib", "8", "--activations-mib", "4096", persistent_mib=FOURTH_MIB
    )
    allowances_mib = {**{job.pid: SHARE_MIB for job in jobs}, fourth.pid: FOURTH_MIB}
    lanes_seen = look_count = 0
    while any(job.poll() is None for job in (*jobs, fourth)):
        check_arithmetic(here, allowances_mib)
        lanes_seen = max(lanes_seen, len(here.ask("status")["lanes"]))
        look_count += 1
    for job in jobs:
        report = here.report(job)
        assert (report["attached"], report["iterations"], report["wrong"]) == (True, iterations, 0), report
    report = here.report(fourth)
    assert (report["refused"], report["refused_with"], report["wrong"]) == (20, ["CUDA_ERROR_OUT_OF_MEMORY"], 0)
    assert lanes_seen == 2
    assert look_count > 20
    wait_until(lambda: here.emulator.used_bytes() == A100_CONTEXT, "all memory but the daemon's context is free")
    here.stop()
    assert here.emulator.used_bytes() == 0


def finish(node: CudaNode, jobs: list[Popen[str]]) -> None:
    """End the endless loops and check their reports."""
    for job in jobs:
        job.terminate()
    for job in jobs:
        report = node.report(job)
        assert report["attached"]
        assert report["iterations"] > 20
        assert report["wrong"] == 0


def iteration_counts(node: CudaNode) -> list[int]:
    return sorted(session["iteration_count"] for session in node.ask("status")["sessions"])


ENDLESS = ("--iterations", "1000000", "--kernel-us", "50")
NAMES = re.findall(r"^    (POINT_\w+),", (LIBSALUS / "point.h").read_text(), re.MULTILINE)
# POINT_IDLE_ENDED is reached by an idle holder that resumes before salusd takes its lease, which never happens while
# others wait. The tests of the host library kill there too.
UNREACHED = {"POINT_NONE", "POINT_IDLE_ENDED", "POINT_LAST"}
POINTS = [number for number, name in enumerate(NAMES) if name not in UNREACHED]
# Many more iterations than any point needs. A loop that never reaches its point still ends.
LONG = ("--iterations", "3000", "--kernel-us", "50")
# A holder becomes idle if it does nothing for a while during an iteration.
IDLE = {NAMES.index("POINT_IDLE"): ("--pause-us", "100000")}


def steady_loops(node: CudaNode) -> list[Popen[str]]:
    steady = [node.job(*ENDLESS, "--started", "--cached") for _ in range(2)]
    for one in steady:
        wait_started(one)
    return steady


def finish_steady(node: CudaNode, steady: list[Popen[str]]) -> None:
    finish(node, steady)
    wait_until(lambda: node.emulator.used_bytes() == CONTEXT, "the memory of the dead jobs is free")


@pytest.mark.parametrize("nths", [(3,), pytest.param((1, 2, 3, 4), marks=pytest.mark.soak)])
def test_a_death_at_any_point_of_the_gate_frees_its_memory_and_harms_no_other_job(
    node: Callable[..., CudaNode], nths: tuple[int, ...]
) -> None:
    """Victims are killed around each write to shared state, beside two jobs that continue and check their data."""
    here = node(config="MaxLanes=1\nPolicy=fair\nIdleRelease=10ms")
    steady = steady_loops(here)
    for nth in nths:
        for first in range(0, len(POINTS), 4):
            batch = POINTS[first : first + 4]
            victims = [here.job(*LONG, *IDLE.get(point, ()), point=(point, nth)) for point in batch]
            ends = {NAMES[point]: victim.wait(60) for point, victim in zip(batch, victims, strict=True)}
            assert set(ends.values()) == {-signal.SIGKILL}, ends
    finish_steady(here, steady)


@pytest.mark.parametrize("stores", [(40, 300, 1000), pytest.param(range(1, 5000), marks=pytest.mark.soak)])
@pytest.mark.timeout(7200)
def test_a_death_inside_the_driver_frees_its_memory_and_harms_no_other_job(
    node: Callable[..., CudaNode], stores: Iterable[int]
) -> None:
    """Victims are killed before the n-th store into the driver's state; the soak tries every n until a loop ends."""
    here = node(config="MaxLanes=1", variant="emulator-inject")
    steady = steady_loops(here)
    waiting = iter(stores)
    reached_end = False
    while not reached_end and (batch := list(islice(waiting, 4))):
        loop = ("--iterations", "3", "--kernel-us", "50") if isinstance(stores, range) else ENDLESS
        victims = [here.job(*loop, SALUS_EMULATOR_DIE_AT=str(store)) for store in batch]
        for victim in victims:
            code = victim.wait(60)
            assert code in (0, -signal.SIGKILL), victim.communicate()
            reached_end |= code == 0
    assert reached_end == isinstance(stores, range)
    finish_steady(here, steady)


def test_lanes_outlive_the_daemon(node: Callable[..., CudaNode]) -> None:
    here = node(config="MaxLanes=1")
    jobs = [here.job("--iterations", "1000000", "--started", "--cached") for _ in range(2)]
    for job in jobs:
        wait_started(job)
    wait_until(lambda: min(iteration_counts(here), default=0) > 10, "both take turns")
    here.kill()
    here.start()
    before = wait_until(lambda: len(counts := iteration_counts(here)) == 2 and counts, "both have reconnected")
    wait_until(lambda: min(iteration_counts(here)) > before[0] + 30, "both take turns again")
    finish(here, jobs)
    wait_until(lambda: here.emulator.used_bytes() == CONTEXT, "all memory but the daemon's context is free")


@pytest.mark.parametrize(("job_class", "is_held"), [("best-effort", True), ("normal", False)])
def test_kernels_of_best_effort_wait_while_the_high_class_works(
    node: Callable[..., CudaNode], job_class: str, is_held: bool
) -> None:
    """Two lanes run at once. A long iteration of the high job holds the other's kernels back, except one per 100 ms."""
    here = node(config="MaxLanes=2\nPolicy=pack")
    counted = here.directory / "count"
    endless = ("--iterations", "1000000", "--kernels", "60", "--kernel-us", "200", "--count-file", str(counted))
    other = here.job(*endless, job_class=job_class)
    wait_until(lambda: counted.exists() and count_in(counted) > 20, "it runs")
    high = here.job("--iterations", "1", "--kernels", "1", "--kernel-us", "500000", job_class="high")
    wait_until(lambda: is_granted(here, "high"), "the high job works")
    before = made = count_in(counted)
    # Count first, and use the count only if the high job still runs afterwards: it ends before its process does.
    while (count := count_in(counted)) >= 0 and is_granted(here, "high"):
        made = count
    here.report(high)
    made -= before
    # Its two kernels take a second, or two with the time slices of the other: enough for ten launches or for hundreds.
    assert made <= 2 if is_held else made > 2, made
    finish(here, [other])


def is_granted(node: CudaNode, job_class: str) -> bool:
    sessions = node.ask("status")["sessions"]
    return any(session["job_class"] == job_class and session["state"] == "running" for session in sessions)


def count_in(path: Path) -> int:
    return int(path.read_text())


def is_lost(node: CudaNode, index: int) -> bool:
    return node.ask("status")["devices"][index]["lost_reason"] is not None


def was_lost(node: CudaNode, *texts: str) -> bool:
    """Whether the log has a lost device with these texts. A device that answers recovers at the next reading."""
    return any(all(text in line for text in ("device lost", *texts)) for line in node.log_tail().splitlines())


@pytest.mark.parametrize("fault", [("lose", "0"), ("xid", "0", "79"), ("hang-nvml", "0")])
def test_a_failed_device_is_marked_and_recovers_while_the_other_keeps_running(
    node: Callable[..., CudaNode], fault: tuple[str, ...]
) -> None:
    here = node(devices="tiny-1g,tiny-1g", config="ReadingTimeout=500ms")
    uuids = [device["device"] for device in here.ask("status")["devices"]]
    steady = here.job("--iterations", "1000000", "--started", device=uuids[1])
    wait_started(steady)
    here.emulator.control(*fault)
    wait_until(lambda: was_lost(here, uuids[0]), "the device is marked")
    # NVML is one library: while a call about one device hangs, no other call returns.
    assert not was_lost(here, uuids[1]) or fault[0] == "hang-nvml"
    here.emulator.control("clear", "0")
    wait_until(lambda: not is_lost(here, 0) and not is_lost(here, 1), "it recovers")
    assert here.report(here.job("--iterations", "20", device=uuids[0]))["attached"]
    finish(here, [steady])


def test_an_ignored_xid_marks_no_device_until_the_configuration_changes(node: Callable[..., CudaNode]) -> None:
    here = node(config="XidIgnore=62,31")
    here.emulator.control("xid", "0", "62")
    # salusd reads events in order: when it has seen the second one, it has ignored the first.
    here.emulator.control("xid", "0", "63")
    wait_until(lambda: was_lost(here, "xid 63"), "the device is marked")
    assert not was_lost(here, "xid 62")
    wait_until(lambda: not is_lost(here, 0), "it answers and recovers")
    here.config.write_text(here.config.read_text().replace("XidIgnore=62,31", "XidIgnore=31"))
    assert "XidIgnore" in here.ask("reload")["changed"]
    here.emulator.control("xid", "0", "62")
    wait_until(lambda: was_lost(here, "xid 62"), "the device is marked")
