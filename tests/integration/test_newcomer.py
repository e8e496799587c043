"""Mistakes of a new user result in one line that says what to do."""

import os
import pwd
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from nodedaemon.core.errors import OperatingError
from slurm_plugin.cluster import ports

ROOT = Path(__file__).parents[2]
#: What set-up itself calls; everything else is what a test puts there.
TOOLS = ("bash", "sh", "sed", "grep", "tail", "mktemp", "rm", "env", "dirname", "cat", "tee", "chmod", "id")
NOT_INSTALLED = "exit 1"


@pytest.fixture
def machine(tmp_path):
    """A tree with set-up alone, and a PATH that has what the test says."""
    (tmp_path / "bin").mkdir()
    shutil.copytree(ROOT / ".ci", tmp_path / "salus" / ".ci")
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))

    def put(name, text="exit 0"):
        program = tmp_path / "bin" / name
        program.unlink(missing_ok=True)
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)

    def setup(part="", **environment):
        environment = {"PATH": str(tmp_path / "bin"), "TMPDIR": str(tmp_path), **environment}
        return subprocess.run(
            ["bash", ".ci/setup", part], cwd=tmp_path / "salus", env=environment, capture_output=True, text=True,
            timeout=30, check=False,
        )  # fmt: skip

    return put, setup


def one_line(done):
    """The one line that answers; set-up fails with it and has made no environment."""
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("setup: ")
    return lines[0]


def test_no_root_and_no_sudo(machine):
    put, setup = machine
    put("dpkg-query", NOT_INSTALLED)
    put("id", "echo 1000")
    assert "neither root nor sudo at hand; ask an admin for: python3 " in one_line(setup())


def test_the_demo_without_root_says_so_before_it_sets_anything_up(machine):
    put, setup = machine
    put("dpkg-query", NOT_INSTALLED)
    put("id", "echo 1000")
    put("sudo")
    assert "not root; " in (line := one_line(setup(part="demo")))
    assert line.endswith("sudo make demo, or su")


def test_the_demo_on_another_system_than_debian(machine):
    put, setup = machine
    put("id", "echo 0")
    assert "no dpkg here; the demo needs packages of Debian 12" in one_line(setup(part="demo"))


def test_the_demo_asks_for_less_than_the_tests(machine):
    put, setup = machine
    put("dpkg-query", NOT_INSTALLED)
    put("id", "echo 0")
    everything, for_demo = one_line(setup()), one_line(setup(part="demo"))
    assert "slurmctld" in for_demo
    assert "chromium" in everything
    assert "chromium" not in for_demo


def test_no_apt(machine):
    put, setup = machine
    put("dpkg-query", NOT_INSTALLED)
    put("id", "echo 0")
    line = one_line(setup())
    assert "no apt-get here; install these packages by hand, then run make setup again: " in line
    assert "slurmctld" in line


def test_apt_that_cannot_reach_its_sources(machine):
    put, setup = machine
    put("dpkg-query", NOT_INSTALLED)
    # A sudo that does nothing as root: the test must not write to the machine.
    put("id", "echo 1000")
    put("sudo", 'case "$*" in *apt-get*) echo "E: Unable to locate package slurmd" >&2; exit 100;; esac')
    put("apt-get")
    line = one_line(setup())
    assert "apt-get: E: Unable to locate package slurmd; check network and sources" in line
    assert "install by hand: python3 " in line


def test_no_compiler(machine):
    put, setup = machine
    put("dpkg-query", "echo install ok installed")
    assert "no C compiler (gcc); install gcc and the headers of libc" in one_line(setup())
    assert "no C compiler (nonesuch)" in one_line(setup(CC="nonesuch"))


def test_old_python(machine):
    put, setup = machine
    put("dpkg-query", "echo install ok installed")
    put("gcc")
    put("python3", 'case "$1" in -V) echo "Python 3.9.2";; *) exit 1;; esac')
    line = one_line(setup())
    assert "Python 3.11 or newer is needed, found Python 3.9.2" in line
    assert "make setup PYTHON=/path/to/it" in line


def test_python_without_venv(machine):
    put, setup = machine
    put("dpkg-query", "echo install ok installed")
    put("gcc")
    put("python3", 'case "$1" in -c) exit 0;; *) exit 1;; esac')
    assert "install its venv module: apt-get install python3-venv" in one_line(setup())


def test_the_demo_without_root_says_how():
    nobody = pwd.getpwnam("nobody")
    done = subprocess.run(
        [sys.executable, "-c", DEMO_AS_NOBODY.format(uid=nobody.pw_uid)], capture_output=True, text=True, timeout=60,
        check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert (
        done.stderr
        == "salus: cluster: start: not root, which device nodes and several users need; run: sudo make demo\n"
    )


# The interpreter may be closed to others, so that nobody but root could start it: only the answer is another's.
DEMO_AS_NOBODY = (
    "import os, sys; from cli import main; os.geteuid = lambda: {uid}; sys.argv[1:] = ['demo']; main.main()"
)


def test_a_port_in_use_is_named_with_its_key(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = tmp_path / "salus.conf"
        config.write_text(
            f"AdmissionSocket={tmp_path}/a.sock\nAdmissionHost=127.0.0.1\nAdmissionPort={port}\nAdmissionMetricsPort=0\n"
            f"StorageUrl=sqlite:///{tmp_path}/salus.db\n"
        )
        done = subprocess.run(
            [sys.executable, "-m", "slurm_plugin.admitd.server", "-f", str(config)], capture_output=True, text=True,
            timeout=60, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    assert done.returncode == 1
    assert f"port {port}: in use; find the process with ss -ltnp" in done.stderr.splitlines()[-1]
    assert "change AdmissionPort" in done.stderr.splitlines()[-1]


def test_a_machine_without_free_ports_gets_a_clear_message(monkeypatch):
    monkeypatch.setattr(ports, "TRIES_MAX", 1)
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(ports, "PORT_FIRST", port)
        monkeypatch.setattr(ports, "PORT_LAST", port + 1)
        with pytest.raises(OperatingError, match=r"1 ports from .* are in use; .*ss -ltnp"):
            ports.hold_port()
