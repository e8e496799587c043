"""Root runs our commands in a directory where another user has planted modules. None of them is imported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodedaemon.service.private import ping
from slurm_plugin.cluster import files
from slurm_plugin.cluster.plan import ClusterPlan
from tests.support.attacker import attack
from tests.support.salusd import DEADLINE_S, ROOT, wait_until

#: As the Debian package installs it: isolated, with our packages from a fixed place.
LAUNCHER = "import sys; sys.path.insert(0, sys.argv.pop(1)); from cli.main import main; sys.exit(main())"
#: Makes modules that report each import. Their names are those of our packages, of the standard library and of hooks.
PLANT = """
names = ["json", "socket", "ctypes", "mmap", "runpy", "msgspec", "psutil", "typer", "sitecustomize", "usercustomize"]
names += [f"{package}/__init__" for package in ("nodedaemon", "cli", "slurm_plugin", "accounting", "structlog")]
folder = sys.argv[1]
os.makedirs(folder)
for name in names:
    path = f"{folder}/{name}.py"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as module:
        module.write(f"import os\\nos.open({folder + '/imported'!r}, os.O_CREAT)\\nraise SystemExit(66)\\n")
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="salus-shared-"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def planted(shared: Path) -> Path:
    attack(PLANT, shared / "home")
    return shared / "home"


def run(*argv: object, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SALUS_"))}
    return subprocess.run(
        [str(part) for part in argv], env=environment | variables, cwd=cwd,
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip


def test_the_selftest_imports_nothing_from_the_working_directory(planted, shared):
    conf = shared / "salus.conf"
    conf.write_text("ClusterName=test\nAutoDetect=off\nDeviceName=host0 Type=host Memory=256M\n")
    done = run(sys.executable, "-I", "-c", LAUNCHER, ROOT, "-f", conf, "doctor", "--selftest", cwd=planted)
    assert not (planted / "imported").exists()
    assert "lanes, hand-over, process death and refusal tested" in done.stdout, done.stdout + done.stderr


# A variable that begins or ends with a colon adds the working directory.
@pytest.mark.parametrize("python_path", ["", ":/nowhere", "/nowhere::/nowhere"])
def test_the_private_daemon_imports_nothing_from_the_working_directory(planted, shared, python_path):
    runtime = shared / "runtime"
    runtime.mkdir(mode=0o700)
    variables = {"XDG_RUNTIME_DIR": str(runtime), "XDG_DATA_HOME": str(runtime), "PYTHONPATH": python_path}
    argv = (sys.executable, "-I", "-c", LAUNCHER, ROOT, "run", "--memory", "64M", "--", "/bin/echo", "job")
    try:
        done = run(*argv, cwd=planted, **variables)
    finally:
        pid = ping(runtime / "salus" / "run" / "control.sock")
        if pid is not None:
            os.kill(pid, 9)
            wait_until(lambda: ping(runtime / "salus" / "run" / "control.sock") is None, "the private salusd ends")
    assert not (planted / "imported").exists()
    assert (done.returncode, done.stdout) == (0, "job\n"), done.stderr


def test_the_commands_of_a_cluster_import_nothing_from_the_working_directory(planted, shared):
    plan = ClusterPlan(directory=shared / "c")
    plan.path("bin").mkdir(parents=True)
    files.write_commands(plan)
    for name in ("salus", "salus-acct"):
        done = run(plan.path("bin", name), "--version", cwd=planted)
        assert not (planted / "imported").exists()
        assert (done.returncode, done.stderr) == (0, "")
