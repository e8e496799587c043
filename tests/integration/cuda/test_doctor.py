"""`salus doctor` on nodes with an emulated GPU, with and without faults."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import emulator as emulators
from tests.support.cuda_node import CudaNode, build_libsalus
from tests.support.emulator import ROOT, Emulator
from tests.support.salusd import wait_until


def doctor(emulator: Emulator, config: Path, *options: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """Exit code, and findings by check."""
    answer = subprocess.run(
        [sys.executable, "-m", "cli.main", "-f", str(config), "doctor", "--json", "-N", "n1", *options],
        env=emulator.environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert answer.stdout, answer.stderr
    found: dict[str, list[dict[str, Any]]] = {}
    for row in json.loads(answer.stdout):
        found.setdefault(row["check"], []).append(row)
    return answer.returncode, found


def levels(found: dict[str, list[dict[str, Any]]], check: str) -> set[str]:
    return {row["level"] for row in found[check]}


def test_a_node_without_faults_passes_all_checks_and_the_selftest() -> None:
    with CudaNode("tiny-1g") as node:
        wait_until((node.directory / "salus.db").exists, "salusd has created its database")
        code, found = doctor(node.emulator, node.directory / "salus.conf")
        assert code == 0, found
        for check in ("driver", "nvml", "lanes", "libsalus", "sockets", "database"):
            assert levels(found, check) == {"ok"}, found[check]
        assert set(found) >= {"mps", "device files", "cgroup", "slurm", "memory limits"}
        code, found = doctor(node.emulator, node.directory / "salus.conf", "--selftest")
        assert levels(found, "selftest") == {"note"}, "salusd holds the device"
        node.stop()
        code, found = doctor(node.emulator, node.directory / "salus.conf", "--selftest")
        assert levels(found, "selftest") == {"ok"}, found["selftest"]
        assert node.emulator.used_bytes() == 0


@pytest.mark.parametrize(
    ("fault", "check", "word"),
    [
        (("lose", "0"), "nvml", "lost: GPU 0"),
        (("hang-nvml", "0"), "nvml", "hung"),
        (("oom", "0", "-1"), "lanes", "MEMORY"),
    ],
)
def test_a_broken_device_is_reported_with_advice(tmp_path: Path, fault: tuple[str, ...], check: str, word: str) -> None:
    build_libsalus()
    emulator = emulators.make(tmp_path, "tiny-1g")
    emulator.control(*fault)
    config = tmp_path / "salus.conf"
    config.write_text(f"StorageUrl=sqlite:///{tmp_path}/none.db\nDaemonSocket={tmp_path}/salusd.sock\n")
    code, found = doctor(emulator, config)
    output = [row for row in found[check] if row["level"] == "failure" and word in row["seen"]]
    assert output, found
    assert all(row["advice"] for row in output)
    assert code == 1
    assert levels(found, "database") == {"failure"}


def test_a_device_without_virtual_memory_management_is_reported(tmp_path: Path) -> None:
    build_libsalus()
    config = tmp_path / "salus.conf"
    config.write_text(f"StorageUrl=sqlite:///{tmp_path}/none.db\nDaemonSocket={tmp_path}/salusd.sock\n")
    code, found = doctor(emulators.make(tmp_path, "old-1g"), config)
    (row,) = found["lanes"]
    assert (code, row["level"]) == (1, "failure")
    assert "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED" in row["seen"]
    assert row["advice"]


def test_every_finding_on_a_misconfigured_node_has_advice(tmp_path: Path) -> None:
    """Everything but the GPU is wrong: MPS program, libraries, sockets, database, Slurm's files."""
    emulator = emulators.make(tmp_path, "tiny-1g")
    places = tmp_path / "places"
    places.mkdir()
    places.chmod(0o777)
    for name in ("salusd.sock", "control.sock"):
        (places / name).write_text("not a socket")
    (tmp_path / "slurm.conf").write_text("ClusterName=other\nSlurmctldHost=x\nSelectType=select/linear\n")
    config = tmp_path / "salus.conf"
    lines = ["ClusterName=test", "ShareMode=mps", f"AdaptorDir={tmp_path}", f"SlurmConf={tmp_path / 'slurm.conf'}"]
    lines += [f"DaemonSocket={places / 'salusd.sock'}", f"ControlSocket={places / 'control.sock'}"]
    config.write_text("\n".join([*lines, f"StorageUrl=sqlite:///{tmp_path}/none.db", ""]))
    code, found = doctor(emulator, config)
    assert code == 1
    for check in ("mps", "libsalus", "sockets", "database", "slurm"):
        assert "failure" in levels(found, check), (check, found[check])
    assert levels(found, "device files") <= {"warning", "ok"}
    without_advice = [
        row for rows in found.values() for row in rows if row["level"] in ("failure", "warning") and not row["advice"]
    ]
    assert without_advice == []
