"""salusd, MPS and salus-admitd work under the restrictions of the shipped units."""

import json
import os
import shutil
import socket
import subprocess
import sys

import pytest

from nodedaemon.drivers.mps import CONTROL
from tests.support import mps_control, unit_sandbox
from tests.support.attacker import ATTACKER
from tests.support.salusd import DEADLINE_S, ROOT, Salusd, wait_until

pytestmark = [
    pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the units start as root"),
]
ENVIRONMENT = {"PYTHONPATH": str(ROOT)}


def run(unit, *argv, **options):
    return subprocess.run(
        unit_sandbox.command(unit, *argv), capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        env={**os.environ, **ENVIRONMENT}, **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("unit", "program", "is_refused"),
    [
        ("salusd", "os.setresuid(7, 7, 7)", False),
        ("salusd", "os.chroot('/')", True),
        ("salus-admitd", "os.setresuid(7, 7, 7)", True),
        ("salus-admitd", "os.chown('.', 7, 7)", True),
        ("salus-admitd", "import mmap; mmap.mmap(-1, 4096, prot=7)", True),
        ("salus-admitd", "import ctypes; ctypes.CFUNCTYPE(None)(print)", False),
    ],
)
def test_the_sandbox_of_these_tests_refuses_what_the_unit_forbids(unit, program, is_refused):
    done = run(unit, sys.executable, "-c", f"import os; {program}")
    assert (done.returncode != 0) is is_refused, done.stderr


MPS = """
import sys
from pathlib import Path
from nodedaemon.drivers.mps import MpsLimits, MpsServer
for _ in range(2):
    server = MpsServer(int(sys.argv[2]), int(sys.argv[2]), Path(sys.argv[1]))
    server.start(("GPU-11aa",), MpsLimits(50, 0, 1))
    assert server.is_running()
    server.stop()
"""


def test_mps_starts_as_the_user_and_again_after_a_stop(open_directory):
    mps_control.write(open_directory / "bin")
    (open_directory / "run").mkdir(mode=0o755)
    path = f"{open_directory / 'bin'}:/usr/bin:/bin"
    done = subprocess.run(
        unit_sandbox.command("salusd", sys.executable, "-c", MPS, str(open_directory / "run"), str(ATTACKER)),
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        env={**os.environ, **ENVIRONMENT, "PATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    folder = open_directory / f"run/mps-{ATTACKER}"
    assert (folder / "log/uid").read_text() == f"{ATTACKER}\n"
    assert (folder.stat().st_mode & 0o777, (folder / "pipe").stat().st_mode & 0o777) == (0o755, 0o700)
    assert not (folder / "pipe" / f"{CONTROL}.pid").exists()


class SandboxedSalusd(Salusd):
    def command(self, *argv):
        return unit_sandbox.command("salusd", *argv)


def test_salusd_serves_and_ends_sessions_of_other_users(rogue):
    config = "HangTimeout=1\nOnHang=kill\nMaxLanes=1\nDomainQuantum=1ms\nUnmapTimeout=300ms"
    with SandboxedSalusd(memory="64M", cores="0", config=config) as daemon:
        bad, good = (rogue(daemon, uid=ATTACKER + number, ephemeral=40) for number in range(2))
        for one in (bad, good):
            assert one.do("run")["ok"]
            assert one.do("hello")["kind"] == "WELCOME"
            one.do("want")
        assert bad.do("map_lane")["bytes"] >= 40 << 20
        # It never gives up the lane, so salusd ends it and gives new memory to the other user.
        assert good.do("map_lane")["bytes"] >= 40 << 20
        wait_until(bad.is_gone, "the hung session is ended", daemon.log_tail)


FAKE_SLURM = {
    "scontrol": 'case "$1" in --version) echo slurm 22.05.8;; *) echo "AccountingStorageEnforce = qos";; esac',
    "sinfo": "printf '%-128s%-128s%-1024s\\n' node1 'main*' gpu:1,shard:48,salus:64",
    "squeue": "echo '{\"jobs\": []}'",
    "sacct": "true",
    "sacctmgr": "true",
}


def test_salus_admitd_answers_submissions_and_records_them(open_directory):
    """As root, who may do more than SlurmUser where the unit does not forbid it."""
    for name, text in FAKE_SLURM.items():
        (open_directory / name).write_text(f"#!/bin/sh\n{text}\n")
        (open_directory / name).chmod(0o755)
    path, config = open_directory / "admitd.sock", open_directory / "salus.conf"
    config.write_text(
        f"ClusterName=c\nSlurmUser=root\nAutoDetect=off\nLaneReserve=256M\nHighQOS=gold\nAdmissionSocket={path}\nAdmissionPort=0\n"
        f"AdmissionMetricsPort=0\nStorageUrl=sqlite:///{open_directory}/salus.db\nSlurmBinDir={open_directory}\n"
    )

    def ask(verb, **fields):
        try:
            with socket.socket(socket.AF_UNIX) as peer:
                peer.settimeout(DEADLINE_S)
                peer.connect(str(path))
                peer.sendall(json.dumps({"verb": verb, **fields}).encode() + b"\n")
                return json.loads(peer.makefile().readline())
        except (FileNotFoundError, ConnectionRefusedError):
            return {}

    job = {"tres_per_node": "gres:salus:1", "qos": "gold"}
    options = {"SALUS_MEM": "100M", "SALUS_CLASS": "high"}
    log = open_directory / "log"
    with log.open("wb") as output, subprocess.Popen(
        unit_sandbox.command("salus-admitd", sys.executable, "-m", "slurm_plugin.admitd.server", "-f", str(config)),
        stdout=output, stderr=output, cwd=ROOT, env={**os.environ, **ENVIRONMENT},
    ) as service:  # fmt: skip
        try:
            wait_until(lambda: ask("ping").get("is_catalog_ready"), "salus-admitd has asked Slurm", log.read_text)
            answer = ask("submit", uid=5, batch=True, job=job, options=options)
            assert answer["set"]["tres_per_node"] == "gres:salus:1,gres:shard:7", answer
        finally:
            service.terminate()
            assert service.wait(DEADLINE_S) == 0, log.read_text()
    assert "Operation not permitted" not in log.read_text()
    assert (open_directory / "salus.db").stat().st_mode & 0o077 == 0
