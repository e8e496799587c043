"""Faults of the database, the disk, the journal, the clock and the configuration; output of jobs; scrapes."""

import contextlib
import os
import random
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request

import pytest

from nodedaemon.service.journal.segments import segment_paths
from nodedaemon.wire.metrics_page import CONNECTIONS_MAX
from tests.integration.faults.running import finish, start_running, wait_for_more
from tests.support.salusd import ROOT, Salusd, wait_until
from tests.support.workers import overlaps


def rows(daemon, query):
    try:
        with sqlite3.connect(daemon.database, timeout=30) as database:
            return list(database.execute(query))
    except sqlite3.OperationalError:
        # The daemon creates the tables with its first batch.
        return []


def fill_disk(path):
    """Write in pieces, so that the last page is used too."""
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


def test_records_wait_while_the_database_is_locked_and_none_is_lost(salusd, crew):
    daemon = salusd(config="StorageTimeout=500ms")
    group = crew(daemon)
    run_a_job(group)
    wait_until(lambda: rows(daemon, "select 1 from sessions where end_utc_ns is not null"), "the first job is recorded")
    lock = sqlite3.connect(daemon.database, isolation_level=None)
    lock.execute("begin exclusive")
    try:
        run_a_job(group)
        daemon.wait_for(
            lambda status: not status["daemon"]["is_database_up"] and status["daemon"]["spool_records"] > 0,
            "the daemon sees that the database is down",
        )
    finally:
        lock.execute("rollback")
        lock.close()
    daemon.wait_for(lambda status: status["daemon"]["spool_records"] == 0, "the spool is written to the database")
    assert daemon.status()["daemon"]["is_database_up"]
    assert len(rows(daemon, "select 1 from sessions where end_utc_ns is not null")) == 2


def set_schema(daemon, version):
    with sqlite3.connect(daemon.database, timeout=30) as database:
        database.execute("update alembic_version set version_num = ?", (version,))


def test_a_newer_schema_is_refused_with_a_clear_message_and_the_node_continues(salusd, crew):
    daemon = salusd(config="LedgerInterval=500ms")
    run_a_job(crew(daemon))
    wait_until(lambda: rows(daemon, "select 1 from sessions where end_utc_ns is not null"), "the job is recorded")
    daemon.stop()
    (known,) = rows(daemon, "select version_num from alembic_version")
    set_schema(daemon, "9999")
    daemon.start()
    run_a_job(crew(daemon))
    daemon.wait_for(lambda status: not status["sessions"], "the job has ended")
    daemon.stop()
    spooled = set((daemon.state / "spool").iterdir())
    assert spooled
    daemon.start()
    daemon.wait_for(lambda status: "newer" in status["daemon"]["database_error"], "the schema is refused")
    assert spooled <= set((daemon.state / "spool").iterdir()), "refused records stay in the spool"
    set_schema(daemon, *known)
    daemon.wait_for(lambda status: status["daemon"]["is_database_up"], "the database is used again")
    daemon.wait_for(lambda status: status["daemon"]["spool_records"] == 0, "the spool is written to the database")
    assert len(rows(daemon, "select 1 from sessions where end_utc_ns is not null")) == 2, "no record was lost"


def test_a_full_disk_loses_journal_entries_but_no_job(salusd, crew):
    daemon = Salusd()
    daemon.state.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", str(daemon.state)], check=True)
    try:
        daemon.start()
        group = crew(daemon)
        worker = start_running(group, iteration_us=300)
        fill_disk(daemon.state / "filler")
        peers = [group.start(iteration_us=300) for _ in range(3)]
        group.ready(*peers)
        for peer in peers:
            peer.go()
            peer.wait_iterations(20)
        daemon.wait_for(lambda status: status["daemon"]["journal_fault"], "the journal reports its fault")
        (daemon.state / "filler").unlink()
        daemon.wait_for(lambda status: not status["daemon"]["journal_fault"], "the journal recovers")
        finish(worker, *peers)
        daemon.wait_for(lambda status: not status["sessions"], "all sessions are released")
    finally:
        daemon.stop()
        subprocess.run(["umount", "-l", str(daemon.state)], check=True)
        daemon.__exit__()


@pytest.mark.parametrize("damage", ["cut", "flip", "garbage"])
def test_a_damaged_journal_never_keeps_the_daemon_down(damage, salusd, crew):
    daemon = salusd()
    group = crew(daemon)
    worker = start_running(group, iteration_us=300)
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
    # The session's memory is counted, whether its record was lost or not.
    daemon.wait_for(lambda status: status["devices"][0]["persistent_bytes"] >= 4 << 20, "the session is taken back")
    wait_for_more(worker)
    finish(worker)
    daemon.wait_for(lambda status: not status["sessions"], "its memory is released")
    run_a_job(group)


HOUR_NS = 3_600_000_000_000


@pytest.mark.parametrize("step_ns", [HOUR_NS, -HOUR_NS])
def test_a_clock_step_changes_no_turn_and_is_recorded(step_ns, salusd, crew, tmp_path):
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
        daemon.log_tail,
    )
    for worker in workers:
        wait_for_more(worker, 50)
    finish(*workers)
    wait_until(
        lambda: len(rows(daemon, "select 1 from sessions where end_utc_ns is not null")) == 2,
        "both sessions are recorded",
    )
    real_ns = time.monotonic_ns() - start_ns
    spans = rows(daemon, "select end_mono_ns - start_mono_ns from sessions")
    spans += rows(daemon, "select span_ns from lane_spans")
    assert len(spans) >= 4
    # Spans are measured by the monotonic clock. Sessions began a little before `start_ns`.
    assert all(0 < span_ns <= real_ns + HOUR_NS // 60 for (span_ns,) in spans), spans
    assert overlaps(workers) == 0


@pytest.mark.parametrize(
    ("line", "output"),
    [("Polcy=fair", "Policy"), ("Policy=fiar", "fair"), ("MaxLanes=", "MaxLanes"), ("Include gone.conf", "gone")],
)
def test_a_reload_with_a_typo_keeps_the_old_configuration(line, output, salusd, crew):
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


def test_a_reload_that_the_engine_refuses_changes_nothing(salusd, crew):
    daemon = salusd(config="LaneReserve=64M")
    group = crew(daemon)
    worker = group.start(iteration_us=300)
    group.ready()
    daemon.config.write_text(daemon.config.read_text().replace("LaneReserve=64M", "LaneReserve=32M\nPolicy=fifo"))
    answer = daemon.ask("reload")
    assert "drain" in answer["why"]
    assert daemon.status()["devices"][0]["policy"] == "fair"
    # The next reload is compared with the configuration that stayed.
    daemon.config.write_text(daemon.config.read_text().replace("LaneReserve=32M", "LaneReserve=64M"))
    assert daemon.ask("reload")["changed"] == ["Policy"]
    worker.go()
    finish(worker)


def test_nothing_is_written_to_the_output_of_a_job(salusd, crew):
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


def scrape(port, path="/metrics"):
    """The page; None while salusd accepts no further connection."""
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30).read().decode()
    except OSError:
        return None


def reported_iterations(page):
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith("salus_iterations_total{"))


def test_scrapes_are_answered_under_load(salusd, crew, request):
    port = free_port()
    daemon = salusd(config=f"MetricsPort={port}\nMaxLanes=1")
    group = crew(daemon)
    workers = [group.start(iteration_us=300) for _ in range(3)]
    group.ready()
    for worker in workers:
        worker.go()
    # Use up all connections with scrapers that send half a request.
    for _ in range(CONNECTIONS_MAX):
        stalled = socket.create_connection(("127.0.0.1", port))
        request.addfinalizer(stalled.close)
        stalled.sendall(b"GET /metrics HTTP/1.1\r\n")
    first = wait_until(lambda: scrape(port), "a scrape is answered", daemon.log_tail)
    for worker in workers:
        wait_for_more(worker)
    for _ in range(20):
        page = scrape(port)
    # Iterations are reported when a grant is returned, which may be after many.
    wait_until(
        lambda: reported_iterations(scrape(port)) > reported_iterations(first),
        "a later page reports more",
        daemon.log_tail,
    )
    for name in (
        "salus_iterations_total",
        "salus_iteration_wait_seconds_bucket",
        "salus_gpu_memory_bytes",
        "salus_db_up",
    ):
        assert name in page
    assert scrape(port, "/healthz") == "ok\n"
    for worker in workers:
        wait_for_more(worker, 5)
    finish(*workers)
