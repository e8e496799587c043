"""The directory of a user's MPS server: the user can put anything there, and salusd reads the pid file as root."""

import os
import subprocess
import sys

import pytest

from nodedaemon.core.errors import OperatingError
from nodedaemon.core.types import DeviceId
from nodedaemon.drivers.mps import CONTROL, OUTPUT_BYTES_MAX, MpsLimits, MpsServer
from tests.support import mps_control
from tests.support.attacker import ATTACKER, ATTACKERS, attack
from tests.support.salusd import DEADLINE_S, ROOT

LIMITS = MpsLimits(thread_percent=50, pinned_bytes=0, device_count=1)
DEVICES = (DeviceId("GPU-11aa"),)
MIB = 1 << 20

#: Asks as salusd does, with little memory to waste.
QUESTION = """
import resource, sys
from pathlib import Path
from nodedaemon.drivers.mps import MpsServer
resource.setrlimit(resource.RLIMIT_AS, (512 << 20, 512 << 20))
uid = int(sys.argv[2])
print(MpsServer(uid, uid, Path(sys.argv[1])).is_running())
"""
PID_FILE = f"""
path = sys.argv[1] + "/pipe/{CONTROL}.pid"
"""
PLANTS = {
    "fifo": "os.mkfifo(path)",
    "endless": "os.symlink('/dev/zero', path)",
    "terminal": "os.symlink('/dev/tty', path)",
    "huge": "os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 1 << 40)",
    "directory": "os.mkdir(path)",
    "no number": "open(path, 'w').write('x' * 100)",
    "another user's process": "open(path, 'w').write(sys.argv[2])",
}


@pytest.fixture
def run_directory(open_directory, monkeypatch):
    monkeypatch.setenv("PATH", f"{open_directory / 'bin'}:/usr/bin:/bin")
    return open_directory / "run"


def is_running(run_directory):
    done = subprocess.run(
        [sys.executable, "-c", QUESTION, str(run_directory), str(ATTACKER)],
        capture_output=True, text=True, timeout=DEADLINE_S, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout == "True\n"


@pytest.fixture
def other_process(run_directory):
    """A control daemon of another user."""
    mps_control.write(run_directory.parent / "bin")
    server = MpsServer(ATTACKERS[1], ATTACKERS[1], run_directory)
    server.start(DEVICES, LIMITS)
    yield int((run_directory / f"mps-{ATTACKERS[1]}/pipe/{CONTROL}.pid").read_text())
    server.stop()


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_pid_file_is_no_server_and_does_not_stop_the_next_start(run_directory, other_process, plant):
    server = MpsServer(ATTACKER, ATTACKER, run_directory)
    server.start(DEVICES, LIMITS)
    assert is_running(run_directory)
    server.stop()
    attack(f"{PID_FILE}{PLANTS[plant]}", run_directory / f"mps-{ATTACKER}", other_process)
    assert not is_running(run_directory)
    if plant != "directory":
        server.start(DEVICES, LIMITS)
        assert is_running(run_directory)
        server.stop()


def test_what_a_server_prints_is_bounded(run_directory):
    mps_control.write(run_directory.parent / "bin", at_start=r"yes '\033[31m no' | head -c 100000000 >&2; exit 1")
    with pytest.raises(OperatingError) as caught:
        MpsServer(ATTACKER, ATTACKER, run_directory).start(DEVICES, LIMITS)
    assert "no" in str(caught.value)
    assert len(str(caught.value)) < OUTPUT_BYTES_MAX + 500
    assert str(caught.value).isprintable()


def test_the_kernel_does_not_spare_a_users_server_when_memory_runs_out(run_directory):
    mps_control.write(
        run_directory.parent / "bin", at_start='cat /proc/self/oom_score_adj > "$CUDA_MPS_LOG_DIRECTORY/adjustment"'
    )
    program = (
        "from tests.security.test_mps_files import *\nfrom pathlib import Path\n"
        "adjustment = Path('/proc/self/oom_score_adj')\n"
        "try:\n    adjustment.write_text('-900')\n"
        # Without CAP_SYS_RESOURCE, any other value shows that the server does not inherit it.
        "except PermissionError:\n    adjustment.write_text('500')\n"
        f"server = MpsServer({ATTACKER}, {ATTACKER}, Path(sys.argv[1]))\nserver.start(DEVICES, LIMITS)\nserver.stop()\n"
    )
    subprocess.run(
        [sys.executable, "-c", program, str(run_directory)],
        check=True, timeout=DEADLINE_S, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (run_directory / f"mps-{ATTACKER}/log/adjustment").read_text() == "0\n"
