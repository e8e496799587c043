"""Another user prepares the directory or the socket of the private salusd, so that `salus run` uses it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodedaemon.service.private import ping
from tests.support.attacker import ATTACKER, ATTACKERS, attack, start_attack
from tests.support.salusd import DEADLINE_S, ROOT

VICTIMS = (0, ATTACKERS[1])
#: Serves argv[1]/run/control.sock and answers everything. It prints each request.
SERVER = """
import json, os, socket, sys
os.umask(0)
folder = sys.argv[1]
os.makedirs(folder + "/run", exist_ok=True)
with open(folder + "/salus.conf", "w") as conf:
    conf.write(f"ClusterName=local\\nControlSocket={folder}/run/control.sock\\n")
listener = socket.socket(socket.AF_UNIX)
listener.bind(folder + "/run/control.sock")
listener.listen()
print("listening", flush=True)
while True:
    peer, _ = listener.accept()
    with peer, peer.makefile("rwb") as stream:
        for line in stream:
            print(line.decode(), end="", flush=True)
            answer = {"ok": True, "pid": os.getpid(), "job": "local-1", "kind": "shared", "is_admitted": True,
                      "env": ["LD_PRELOAD=/evil.so"]}
            stream.write(json.dumps(answer).encode() + b"\\n")
            stream.flush()
"""
#: Runs `salus` as a user who may not be able to read the checkout.
SALUS = """
import contextlib, io, os, random, sys
import cli.main, cli.site.config, nodedaemon.service.private
with contextlib.redirect_stdout(io.StringIO()):
    cli.entry.run(cli.main.app, "salus", ["run", "--help"])
uid, system_file = int(sys.argv.pop(1)), sys.argv.pop(1)
nodedaemon.config.loading.SYSTEM_FILE = nodedaemon.config.loading.Path(system_file)
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
cli.main.main()
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A temporary directory that everybody may write to, such as /tmp."""
    folder = Path(tempfile.mkdtemp(prefix="salus-shared-"))
    folder.chmod(0o1777)
    yield folder
    # A failed test may have left a daemon.
    pid = ping(folder / "salus-0" / "run" / "control.sock")
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder)


@pytest.fixture
def fake_daemon() -> Iterator[Callable[[Path], subprocess.Popen[str]]]:
    """A function that lets the attacker serve a directory; all servers are ended after the test."""
    servers = []

    def start(folder: Path) -> subprocess.Popen[str]:
        server = start_attack(SERVER, folder)
        servers.append(server)
        assert server.stdout is not None
        assert server.stdout.readline() == "listening\n"
        return server

    yield start
    for server in servers:
        server.kill()
        server.communicate()


def requests_of(server: subprocess.Popen[str]) -> str:
    """End the server and return the requests that it got."""
    server.kill()
    return server.communicate()[0]


def salus(uid: int, *arguments: str, system_file: str = "/none", **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "SALUS_"))}
    return subprocess.run(
        [sys.executable, "-c", SALUS, str(uid), system_file, *arguments],
        env=environment | {"PYTHONPATH": str(ROOT)} | variables,
        cwd="/", capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip


def run_job(uid: int, shared: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return salus(
        uid, "run", "--", "/usr/bin/env", TMPDIR=str(shared), XDG_DATA_HOME=f"{shared}/data-{uid}", **variables
    )


def assert_refused(done: subprocess.CompletedProcess[str], place: Path, advice: str) -> None:
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert str(place) in line
    assert advice in line


@pytest.mark.parametrize("victim", VICTIMS)
def test_run_refuses_a_directory_that_another_user_made_first(victim, shared, fake_daemon):
    server = fake_daemon(shared / f"salus-{victim}")
    assert_refused(run_job(victim, shared), shared / f"salus-{victim}", "XDG_RUNTIME_DIR")
    assert requests_of(server) == ""


@pytest.mark.parametrize("victim", VICTIMS)
def test_run_refuses_a_symbolic_link(victim, shared, fake_daemon):
    server = fake_daemon(shared / "elsewhere")
    attack("import os, sys; os.symlink(sys.argv[1], sys.argv[2])", shared / "elsewhere", shared / f"salus-{victim}")
    assert_refused(run_job(victim, shared), shared / f"salus-{victim}", "XDG_RUNTIME_DIR")
    assert requests_of(server) == ""


@pytest.mark.parametrize("victim", VICTIMS)
def test_run_refuses_its_own_directory_if_others_may_write_to_it(victim, shared, fake_daemon):
    folder = shared / f"salus-{victim}"
    folder.mkdir()
    os.chown(folder, victim, victim)
    folder.chmod(0o777)
    server = fake_daemon(folder)
    assert_refused(run_job(victim, shared), folder, "chmod go-w")
    assert requests_of(server) == ""


def test_run_refuses_a_directory_that_others_may_replace(shared):
    # Without the sticky bit, every user may rename what is in the directory.
    shared.chmod(0o777)
    assert_refused(run_job(0, shared), shared, "XDG_RUNTIME_DIR")


def test_root_does_not_use_the_runtime_directory_of_the_user_who_became_root(shared, fake_daemon):
    runtime = shared / "runtime"
    server = fake_daemon(runtime / "salus")
    planted = fake_daemon(shared / "salus-0")
    # Both belong to the attacker: the runtime directory is ignored, the other one is refused.
    assert_refused(run_job(0, shared, XDG_RUNTIME_DIR=str(runtime)), shared / "salus-0", "XDG_RUNTIME_DIR")
    assert requests_of(server) + requests_of(planted) == ""


def test_run_keeps_no_records_in_a_directory_of_another_user(shared):
    attack("import os, sys; os.makedirs(sys.argv[1] + '/salus')", shared / "data-0")
    assert_refused(run_job(0, shared), shared / "data-0" / "salus", "XDG_DATA_HOME")
    assert not (shared / "data-0" / "salus" / "salus.db").exists()


@pytest.mark.parametrize("command", [["status"], ["top", "--once"], ["reload"], ["drain", "host0"], ["why", "1"]])
def test_no_command_asks_a_private_daemon_of_another_user(command, shared, fake_daemon):
    server = fake_daemon(shared / "salus-0")
    conf = shared / "none.conf"
    conf.write_text(f"ClusterName=local\nControlSocket={shared}/none.sock\n")
    done = salus(0, *command, system_file=str(conf), TMPDIR=str(shared))
    assert_refused(done, shared / "salus-0", "XDG_RUNTIME_DIR")
    assert requests_of(server) == ""


def test_no_command_trusts_a_server_of_another_user_at_a_configured_socket(shared, fake_daemon):
    server = fake_daemon(shared / "site")
    done = salus(0, "-f", str(shared / "site" / "salus.conf"), "run", "--", "/usr/bin/env")
    assert_refused(done, shared / "site" / "run" / "control.sock", f"uid {ATTACKER}")
    assert requests_of(server) == ""
