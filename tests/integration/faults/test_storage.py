"""Faults 6 to 8, 13, 14, 22, 24 and 25: database, disk, damaged files, clocks, configuration, noise, races, scrapes."""

import contextlib
import os
import random
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

from nodedaemon.core.commands import Grant
from nodedaemon.core.events import GrantReturned, GrantWanted
from nodedaemon.service.control.metrics import CONNECTIONS_MAX
from nodedaemon.service.journal.dispatcher import replay
from nodedaemon.service.journal.segments import read_journal, segment_paths
from tests.support.salusd import ROOT, Salusd, wait_until
from tests.support.workers import overlaps


def rows(daemon, query):
    try:
        with sqlite3.connect(daemon.database, timeout=30) as database:
            return list(database.execute(query))
    except sqlite3.OperationalError:
        # The daemon makes the tables with its first batch.
        return []


def fill_disk(path):
    """Write in pieces, so that the last page is taken too."""
    with path.open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(b"x" * 4096)


def run_a_job(group):
    worker = group.start(iteration_us=300, iterations=20)
    group.ready(worker)
    worker.go()
    worker.finish()
    return worker


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_06_records_wait_while_the_database_is_locked_and_none_is_lost(salusd, crew):
    daemon = salusd(config="StorageTimeout=500ms")
    group = crew(daemon)
    run_a_job(group)
    wait_until(lambda: rows(daemon, "select 1 from sessions where end_utc_ns is not null"), "the first is recorded")
    lock = sqlite3.connect(daemon.database, isolation_level=None)
    lock.execute("begin exclusive")
    try:
        run_a_job(group)
        daemon.wait_for(
            lambda status: not status["daemon"]["is_database_up"] and status["daemon"]["spool_records"] > 0,
            "it is noticed",
        )
    finally:
        lock.execute("rollback")
        lock.close()
    daemon.wait_for(lambda status: status["daemon"]["spool_records"] == 0, "the spool is handed over")
    assert daemon.status()["daemon"]["is_database_up"]
    assert len(rows(daemon, "select 1 from sessions where end_utc_ns is not null")) == 2


def set_schema(daemon, version):
    with sqlite3.connect(daemon.database, timeout=30) as database:
        database.execute("update alembic_version set version_num = ?", (version,))


def test_06_a_newer_schema_is_refused_with_a_clear_line_and_the_node_works_on(salusd, crew):
    daemon = salusd(config="LedgerInterval=500ms")
    run_a_job(crew(daemon))
    wait_until(lambda: rows(daemon, "select 1 from sessions where end_utc_ns is not null"), "it is recorded")
    daemon.stop()
    (known,) = rows(daemon, "select version_num from alembic_version")
    set_schema(daemon, "9999")
    daemon.start()
    run_a_job(crew(daemon))
    daemon.wait_for(lambda status: not status["sessions"], "the job's end is on record")
    daemon.stop()
    spooled = set((daemon.state / "spool").iterdir())
    assert spooled
    daemon.start()
    daemon.wait_for(lambda status: "newer" in status["daemon"]["database_error"], "the schema is refused")
    assert spooled <= set((daemon.state / "spool").iterdir()), "what was refused stays"
    set_schema(daemon, *known)
    daemon.wait_for(lambda status: status["daemon"]["is_database_up"], "it is taken again")
    daemon.wait_for(lambda status: status["daemon"]["spool_records"] == 0, "the spool is handed over")
    assert len(rows(daemon, "select 1 from sessions where end_utc_ns is not null")) == 2, "nothing was lost meanwhile"


def test_07_a_full_disk_costs_records_by_value_and_no_job(salusd, crew):
    daemon = Salusd()
    daemon.state.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", str(daemon.state)], check=True)
    try:
        daemon.start()
        group = crew(daemon)
        worker = group.start(iteration_us=300)
        group.ready()
        worker.go()
        worker.wait_iterations(5)
        fill_disk(daemon.state / "filler")
        peers = [group.start(iteration_us=300) for _ in range(3)]
        group.ready(*peers)
        for peer in peers:
            peer.go()
            peer.wait_iterations(20)
        daemon.wait_for(lambda status: status["daemon"]["journal_fault"], "the journal reports its fault")
        (daemon.state / "filler").unlink()
        daemon.wait_for(lambda status: not status["daemon"]["journal_fault"], "the journal recovers")
        for one in (worker, *peers):
            one.stop()
            one.finish()
        daemon.wait_for(lambda status: not status["sessions"], "all are released")
    finally:
        daemon.stop()
        subprocess.run(["umount", "-l", str(daemon.state)], check=True)
        daemon.__exit__()


@pytest.mark.parametrize("damage", ["cut", "flip", "garbage"])
def test_08_a_damaged_journal_never_keeps_the_daemon_down(damage, salusd, crew):
    daemon = salusd()
    group = crew(daemon)
    worker = group.start(iteration_us=300)
    group.ready()
    worker.go()
    worker.wait_iterations(5)
    daemon.kill()
    path = segment_paths(daemon.state / "journal")[-1]
    content = bytearray(path.read_bytes())
    if damage == "cut":
        del content[-7:]
    elif damage == "flip":
        content[random.Random(3).randrange(len(content) // 2, len(content))] ^= 0xFF
    else:
        content = bytearray(b"not a journal" * 50)
    path.write_bytes(content)
    daemon.start()
    # Whether its record was lost or not, what it holds is counted.
    daemon.wait_for(lambda status: status["devices"][0]["persistent_bytes"] >= 4 << 20, "it is taken back")
    count = len(worker.iterations())
    worker.wait_iterations(count + 20)
    worker.stop()
    worker.finish()
    daemon.wait_for(lambda status: not status["sessions"], "its end gives its bytes back")
    fresh = group.start(iteration_us=300, iterations=5)
    group.ready(fresh)
    fresh.go()
    fresh.finish()


HOUR_NS = 3_600_000_000_000


@pytest.mark.parametrize("step_ns", [HOUR_NS, -HOUR_NS])
def test_13_a_stepped_clock_changes_no_turn_and_is_told_in_the_records(step_ns, salusd, crew, tmp_path):
    offset = tmp_path / "offset"
    offset.write_text("0")
    clock = ROOT / "tests/support/stepped_clock"
    environment = {
        "PYTHONPATH": f"{clock}{os.pathsep}{ROOT}",
        "SALUS_TEST_CLOCK": str(offset),
        "WATCHDOG_USEC": "400000",
    }
    config = "MaxLanes=1\nPolicy=fair\nHangTimeout=5\nOnHang=kill"
    daemon = salusd(config=config, environment=environment)
    group = crew(daemon)
    workers = [group.start(iteration_us=1000) for _ in range(2)]
    group.ready()
    start_ns = time.monotonic_ns()
    for worker in workers:
        worker.go()
        worker.wait_iterations(10)
    offset.write_text(str(step_ns))
    wait_until(
        lambda: rows(daemon, "select 1 from events where kind = 'clock_stepped'"),
        "the clock step is recorded",
        daemon.story,
    )
    counts = [len(worker.iterations()) for worker in workers]
    for worker, count in zip(workers, counts, strict=True):
        worker.wait_iterations(count + 50)
    for worker in workers:
        worker.stop()
        worker.finish()
    wait_until(
        lambda: len(rows(daemon, "select 1 from sessions where end_utc_ns is not null")) == 2, "both are recorded"
    )
    real_ns = time.monotonic_ns() - start_ns
    spans = rows(daemon, "select end_mono_ns - start_mono_ns from sessions")
    spans += rows(daemon, "select span_ns from lane_spans")
    assert len(spans) >= 4
    # Lengths are those of the clock that does not step; sessions began a little before the count.
    assert all(0 < span_ns <= real_ns + HOUR_NS // 60 for (span_ns,) in spans), spans
    assert overlaps(workers) == 0


@pytest.mark.parametrize(
    ("line", "output"),
    [("Polcy=fair", "Policy"), ("Policy=fiar", "fair"), ("MaxLanes=", "MaxLanes"), ("Include gone.conf", "gone")],
)
def test_14_a_reload_with_a_typo_keeps_the_old_configuration(line, output, salusd, crew):
    daemon = salusd()
    before = daemon.config.read_text()
    daemon.config.write_text(before + line + "\n")
    answer = daemon.ask("reload")
    assert answer["ok"] is False
    assert output in answer["why"]
    assert f"{daemon.config}:{len(before.splitlines()) + 1}" in answer["why"]
    assert daemon.status()["devices"][0]["policy"] == "fair"
    assert daemon.status()["daemon"]["reload_error"]
    daemon.config.write_text(before + "Policy=srtf\n")
    assert daemon.ask("reload")["changed"] == ["Policy"]
    assert daemon.status()["devices"][0]["policy"] == "srtf"
    assert not daemon.status()["daemon"]["reload_error"]


def test_14_a_reload_that_the_engine_refuses_changes_nothing(salusd, crew):
    daemon = salusd(config="LaneReserve=64M")
    group = crew(daemon)
    worker = group.start(iteration_us=300)
    group.ready()
    daemon.config.write_text(daemon.config.read_text().replace("LaneReserve=64M", "LaneReserve=32M\nPolicy=fifo"))
    answer = daemon.ask("reload")
    assert "drain" in answer["why"]
    assert daemon.status()["devices"][0]["policy"] == "fair"
    # What the next reload changes is counted from the configuration that stayed.
    daemon.config.write_text(daemon.config.read_text().replace("LaneReserve=32M", "LaneReserve=64M"))
    assert daemon.ask("reload")["changed"] == ["Policy"]
    worker.go()
    worker.stop()
    worker.finish()


def test_22_nothing_is_written_to_a_jobs_output(salusd, crew):
    daemon = salusd()
    program = (
        "import ctypes,sys\nsys.path.insert(0,'.')\n"
        "from tests.support.worker import LIBRARY,HelloOptions,start_run\n"
        "start_run(sys.argv[1],{'persistent_bytes':1<<22,'ephemeral_bytes':1<<22,'wait_ms':9000})\n"
        "l=ctypes.CDLL(str(LIBRARY)); o=HelloOptions(size_bytes=ctypes.sizeof(HelloOptions))\n"
        "l.salus_hello(sys.argv[2].encode(),ctypes.byref(o),None)\n"
        "for _ in range(100): l.salus_boundary()\n"
        "l.salus_bye(); print('job')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(daemon.control), str(daemon.socket)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert (done.stdout, done.stderr) == ("job\n", "")


def overtakings(daemon, session):
    """From the journal: how many iterations of others began during each wait of the session."""
    counts, waiting = [], [False, 0]

    def watch(event, _now_ns, made):
        if isinstance(event, GrantReturned) and event.session != session and waiting[0]:
            waiting[1] += event.contended_count
        is_wish = isinstance(event, GrantWanted) or (isinstance(event, GrantReturned) and event.wants_next)
        if is_wish and event.session == session:
            waiting[:] = [True, 0]
        is_granted = any(isinstance(one, Grant) and one.session == session for one in made)
        if waiting[0] and (is_granted or (isinstance(event, GrantReturned) and event.handed_over is not None)):
            counts.append(waiting[1])
            waiting[0] = False

    for segment in read_journal(daemon.state / "journal"):
        replay(segment, watch)
    return counts


@pytest.mark.parametrize("overtakes_max", [20, 10_000_000], ids=["bound", "control"])
def test_23_no_waiter_is_overtaken_more_often_than_allowed(overtakes_max, salusd, crew):
    """fifo keeps the lane with the first as long as it wants; only the bound on overtaking lets the second run."""
    daemon = salusd(config=f"MaxLanes=1\nPolicy=fifo\nMaxOvertakes={overtakes_max}")
    group = crew(daemon)
    # One after the other: fifo orders sessions by arrival, not by the start of their process.
    first = group.start(iteration_us=500)
    group.ready(first)
    late = group.start(iteration_us=500)
    group.ready(late)
    first.go()
    first.wait_iterations(5)
    late.go()
    daemon.wait_for(lambda status: daemon.sessions()[late.job]["state"] == "waiting", "the late one waits")
    if overtakes_max > 20:
        first.wait_iterations(len(first.iterations()) + 300)
        assert late.iterations() == []
    else:
        late.wait_iterations(30)
    first.stop()
    first.finish()
    late.stop()
    late.finish()
    daemon.stop()
    counts = overtakings(daemon, 2)
    assert counts
    assert max(counts) <= overtakes_max, counts


def high_beside_low(daemon, group, iterations):
    """How many iterations each low job begins between the first and the last of a high one."""
    low = [group.start(iteration_us=3000, job_class="best-effort") for _ in range(4)]
    high = group.start(iteration_us=500, job_class="high", iterations=iterations)
    group.ready()
    for worker in low:
        worker.go()
        worker.wait_iterations(1)
    high.go()
    high.finish()
    first_ns, last_ns = high.iterations()[0]["start_ns"], high.iterations()[-1]["end_ns"]
    counts = [sum(first_ns <= it["start_ns"] < last_ns for it in one.iterations()) for one in low]
    for worker in low:
        worker.stop()
        worker.finish()
    return counts


def test_23_a_waiting_high_job_is_not_held_up_by_the_low_ones_it_waits_for(salusd, crew):
    """No inversion: under priority the low holder ends at its next boundary, however many low ones wait before."""
    daemon = salusd(config="MaxLanes=1\nPolicy=priority")
    assert high_beside_low(daemon, crew(daemon), iterations=3) == [0] * 4


def test_23_while_a_high_job_runs_no_low_iteration_starts_in_another_lane(salusd, crew):
    """The class is the device's, not a lane's: the key alone would only put the high one first in its own lane."""
    daemon = salusd(config="MaxLanes=2\nPolicy=priority\nIdleRelease=1:00:00\nHangTimeout=2:00:00")
    counts = high_beside_low(daemon, crew(daemon), iterations=200)
    # One that has passed the gate may look at the clock later than the high one that came meanwhile.
    assert max(counts) <= 1, counts


def test_24_jobs_that_race_for_the_last_bytes_are_admitted_one_by_one(salusd):
    daemon = salusd(memory="64M")
    answers = {}

    def start(number):
        segment = "salus:1;P=25165824;E=8388608;K=shared"
        answers[number] = daemon.hook("job_start", job=str(number), uid=os.getuid(), segment=segment, wait_ms=500)["ok"]

    threads = [threading.Thread(target=start, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers.values()) == [False] * 4 + [True] * 2
    device = daemon.status()["devices"][0]
    assert device["persistent_bytes"] + device["lane_bytes"] <= device["capacity_bytes"]
    admitted = next(number for number, ok in answers.items() if ok)
    # They are admitted in order, so what would help the oldest need not help the others.
    waiting = [one for one in daemon.status()["sessions"] if one["state"] == "arriving"]
    oldest = min(waiting, key=lambda one: one["session"])
    why = daemon.ask("why", job=oldest["job"])["sessions"][0]
    assert why["reasons"]
    assert any(change["is_served"] for change in why["changes"])
    daemon.hook("job_end", job=str(admitted), uid=os.getuid())
    daemon.wait_for(
        lambda status: sum(s["state"] != "arriving" for s in status["sessions"]) == 2, "the next is admitted"
    )


def scrape(port, path="/metrics"):
    """The page; None while salusd has no connection to spare."""
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30).read().decode()
    except OSError:
        return None


def reported_iterations(page):
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith("salus_iterations_total{"))


def test_25_scrapes_are_answered_during_load(salusd, crew, request):
    port = free_port()
    daemon = salusd(config=f"MetricsPort={port}\nMaxLanes=1")
    group = crew(daemon)
    workers = [group.start(iteration_us=300) for _ in range(3)]
    group.ready()
    for worker in workers:
        worker.go()
    # As many scrapers as are served at once ask half a question and say no more.
    for _ in range(CONNECTIONS_MAX):
        stalled = socket.create_connection(("127.0.0.1", port))
        request.addfinalizer(stalled.close)
        stalled.sendall(b"GET /metrics HTTP/1.1\r\n")
    first = wait_until(lambda: scrape(port), "a scrape is answered", daemon.story)
    for worker in workers:
        worker.wait_iterations(worker.iteration_count + 20)
    for _ in range(20):
        page = scrape(port)
    # Iterations are reported when a grant is returned, which may be after many.
    wait_until(
        lambda: reported_iterations(scrape(port)) > reported_iterations(first),
        "a later page reports more",
        daemon.story,
    )
    for name in (
        "salus_iterations_total",
        "salus_iteration_wait_seconds_bucket",
        "salus_gpu_memory_bytes",
        "salus_db_up",
    ):
        assert name in page
    assert scrape(port, "/healthz") == "ok\n"
    counts = [len(worker.iterations()) for worker in workers]
    for worker, count in zip(workers, counts, strict=True):
        worker.wait_iterations(count + 5)
        worker.stop()
    for worker in workers:
        worker.finish()
