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
#: The programs that set-up itself calls. Everything else on PATH comes from the test.
TOOLS = ("bash", "sh", "sed", "grep", "tail", "mktemp", "rm", "env", "dirname", "cat", "tee", "chmod", "id")
PACKAGES_MISSING = {"dpkg-query": "exit 1"}
PACKAGES_THERE = {"dpkg-query": "echo install ok installed"}
ROOT_USER, OTHER_USER = {"id": "echo 0"}, {"id": "echo 1000"}


@pytest.fixture
def run_setup(tmp_path):
    """A function that runs set-up in a tree of its own, with these programs on PATH, and returns its one line."""
    (tmp_path / "bin").mkdir()
    shutil.copytree(ROOT / ".ci", tmp_path / "salus" / ".ci")
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))

    def run(programs, part="", **environment):
        for name, text in programs.items():
            program = tmp_path / "bin" / name
            program.unlink(missing_ok=True)
            program.write_text(f"#!/bin/sh\n{text}\n")
            program.chmod(0o755)
        environment = {"PATH": str(tmp_path / "bin"), "TMPDIR": str(tmp_path), **environment}
        done = subprocess.run(
            ["bash", ".ci/setup", part], cwd=tmp_path / "salus", env=environment, capture_output=True, text=True,
            timeout=30, check=False,
        )  # fmt: skip
        assert done.returncode == 1, done.stdout + done.stderr
        (line,) = done.stderr.splitlines()
        assert line.startswith("setup: ")
        return line

    return run


@pytest.mark.parametrize(
    ("programs", "part", "expected"),
    [
        pytest.param(
            PACKAGES_MISSING | OTHER_USER, "",
            ["neither root nor sudo is available; ask an admin to install: python3 "],
            id="neither root nor sudo",
        ),
        pytest.param(
            PACKAGES_MISSING | OTHER_USER | {"sudo": ""}, "demo", ["not root; ", "sudo make demo, or su"],
            id="the demo without root",
        ),
        pytest.param(
            ROOT_USER, "demo", ["no dpkg here; the demo needs packages of Debian 12"],
            id="the demo on a system other than Debian",
        ),
        pytest.param(
            PACKAGES_MISSING | ROOT_USER, "",
            ["no apt-get here; install these packages by hand, then run make setup again: ", "slurmctld"],
            id="no apt-get",
        ),
        pytest.param(
            # As another user with a sudo that does nothing: the test must not change the machine.
            PACKAGES_MISSING | OTHER_USER | {
                "apt-get": "",
                "sudo": 'case "$*" in *apt-get*) echo "E: Unable to locate package slurmd" >&2; exit 100;; esac',
            },
            "",
            ["apt-get: E: Unable to locate package slurmd; check the network and the sources", "by hand: python3 "],
            id="apt-get that cannot reach its sources",
        ),
        pytest.param(
            PACKAGES_THERE, "", ["no C compiler (gcc); install gcc and the libc headers"], id="no compiler",
        ),
        pytest.param(
            PACKAGES_THERE | {"gcc": "", "python3": 'case "$1" in -V) echo "Python 3.9.2";; *) exit 1;; esac'}, "",
            ["Python 3.11 or newer is needed, found Python 3.9.2", "make setup PYTHON=/path/to/python"],
            id="an old Python",
        ),
        pytest.param(
            PACKAGES_THERE | {"gcc": "", "python3": 'case "$1" in -c) exit 0;; *) exit 1;; esac'}, "",
            ["install its venv module: apt-get install python3-venv"],
            id="a Python without venv",
        ),
    ],
)  # fmt: skip
def test_set_up_that_cannot_continue_says_in_one_line_what_to_do(run_setup, programs, part, expected):
    line = run_setup(programs, part)
    assert [text for text in expected if text not in line] == [], line


def test_set_up_names_the_compiler_that_was_chosen(run_setup):
    assert "no C compiler (nonesuch)" in run_setup(PACKAGES_THERE, CC="nonesuch")


def test_the_demo_needs_fewer_packages_than_the_tests(run_setup):
    everything, for_demo = (run_setup(PACKAGES_MISSING | ROOT_USER, part) for part in ("", "demo"))
    assert "slurmctld" in for_demo
    assert "chromium" in everything
    assert "chromium" not in for_demo


def test_the_demo_without_root_says_how_to_run_it():
    nobody = pwd.getpwnam("nobody")
    done = subprocess.run(
        [sys.executable, "-c", DEMO_AS_NOBODY.format(uid=nobody.pw_uid)], capture_output=True, text=True, timeout=60,
        check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert (
        done.stderr
        == "salus: cluster: start: root is needed, for device nodes and several users; run: sudo make demo\n"
    )


# Other users may not be able to run our interpreter, so root runs it and only pretends to have another id.
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
