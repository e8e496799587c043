"""`salus demo` ends cleanly wherever it is interrupted, even in a directory that the cluster's users cannot enter."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.support.cluster_fixtures import SLURM_ROOT
from tests.support.lab import wait_for

ROOT = Path(__file__).parents[2]
PARTS = ("cli", "nodedaemon", "slurm_plugin", "accounting", "migrations", "examples", "build/spank", "pyproject.toml")
DEADLINE_S = 120

pytestmark = pytest.mark.skipif(SLURM_ROOT is not None, reason="another root file system has no PyTorch")


@pytest.fixture
def closed_tree():
    """A copy of our tree that only root can enter, like a clone in a home directory."""
    place = Path(tempfile.mkdtemp(prefix="salus-closed-"))
    for part in PARTS:
        source, target = ROOT / part, place / "salus" / part
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copyfile(source, target)
    yield place / "salus"
    shutil.rmtree(place)


def processes_of(text):
    """Ids of processes that have `text` in their command or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if text.encode() in (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def lines_until(stream, is_wanted):
    deadline, lines = time.monotonic() + DEADLINE_S, []
    for line in stream:
        lines.append(line)
        if is_wanted(line):
            return lines
        assert time.monotonic() < deadline, "".join(lines)
    raise AssertionError("the demo ended early: " + "".join(lines))


@pytest.mark.parametrize(
    ("moment", "is_reached"),
    [
        ("while the cluster starts", lambda line: "munged" in line),
        ("while jobs run", lambda line: "jobs run" in line and " 0 jobs run" not in line),
    ],
    ids=["starting", "running"],
)
def test_ctrl_c_leaves_nothing_behind(closed_tree, moment, is_reached):
    accounts = Path("/etc/passwd").read_bytes()
    place = Path(tempfile.mkdtemp(prefix="s-"))
    place.chmod(0o755)
    demo = subprocess.Popen(
        [sys.executable, "-m", "cli.main", "demo", "--report", str(place / "report.html")],
        env={**os.environ, "PYTHONPATH": str(closed_tree), "TMPDIR": str(place)}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, cwd=closed_tree, start_new_session=True,
    )  # fmt: skip
    try:
        lines = lines_until(demo.stdout, is_reached)
        os.killpg(demo.pid, signal.SIGINT)
        lines += demo.stdout.readlines()
        assert demo.wait(60) == 130, "".join(lines)
        assert "interrupted" in lines[-1]
        assert list(place.iterdir()) == []
        # A daemon may need a moment to end, but none may stay.
        wait_for(lambda: not processes_of(str(place)), lambda: f"processes {processes_of(str(place))} to end", 10)
        assert str(place) not in Path("/proc/mounts").read_text()
        assert Path("/etc/passwd").read_bytes() == accounts
    finally:
        demo.kill()
        demo.wait()
        demo.stdout.close()
        shutil.rmtree(place, ignore_errors=True)


def test_a_demo_that_fails_shows_the_end_of_the_failed_parts_log_and_keeps_all_logs(open_directory):
    programs, place = open_directory / "bin", open_directory / "tmp"
    for folder in (programs, place):
        folder.mkdir()
    (programs / "munged").write_text("#!/bin/sh\necho this machine has no entropy today >&2\nexit 1\n")
    (programs / "munged").chmod(0o755)
    report = open_directory / "out" / "report.html"
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "demo", "--report", str(report)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(place), "PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True, text=True, cwd=ROOT, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    (kept,) = report.parent.glob("failed-*")
    assert done.returncode == 1, done.stderr
    assert f"failed; the logs are kept in {kept}" in done.stdout
    assert "  this machine has no entropy today\n" in done.stdout
    assert "no entropy today" in (kept / "munged.out").read_text()
    assert done.stderr.startswith("salus: cluster: start munged: the process ended")
    assert str(kept) in done.stderr
    assert str(place) not in done.stderr
    assert list(place.iterdir()) == []
