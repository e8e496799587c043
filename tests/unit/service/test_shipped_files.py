"""The files of etc/ for systemd, Prometheus and Grafana name metrics and programs that exist."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from nodedaemon.core.engine import Engine
from nodedaemon.service.control.metrics import EventMetrics, NodeCollector
from nodedaemon.service.journal.state import ShellState
from nodedaemon.service.usage.spool import RecordValue
from tests.unit.cli.test_top import NODE

ETC = Path(__file__).resolve().parents[3] / "etc"
NAME = re.compile(r"\bsalus_[a-z_]+")


@pytest.fixture(scope="module")
def served():
    registry = CollectorRegistry()
    EventMetrics(ShellState(Engine()), registry)
    status = SimpleNamespace(status=lambda _caller: NODE)
    ledger = SimpleNamespace(spool=SimpleNamespace(dropped={RecordValue.READING: 1}))
    recorder, administration = SimpleNamespace(event_counts={"hung": 1}), SimpleNamespace(reload_utc_s=5.0)
    registry.register(NodeCollector(status, ledger, recorder, administration))
    return generate_latest(registry).decode()


@pytest.mark.parametrize("place", ["prometheus/salus.rules.yml", "grafana/salus.json"])
def test_every_metric_that_a_shipped_file_uses_is_served(place, served):
    served_names = set(re.findall(r"^# TYPE (salus_[a-z_]+)", served, re.MULTILINE))
    for name in set(NAME.findall((ETC / place).read_text())):
        assert re.sub(r"_(bucket|sum|count)$", "", name) in served_names, name


def test_no_metric_has_a_job_or_user_label(served):
    labels = set(re.findall(r'([a-z_]+)="', served))
    assert labels <= {"node", "gpu", "uuid", "model", "kind", "state", "version", "policy", "value", "le"}
    assert "jain_ratio" in served


def test_the_dashboard_is_json_with_a_datasource_variable_and_unique_panels():
    board = json.loads((ETC / "grafana/salus.json").read_text())
    assert board["templating"]["list"][0]["name"] == "datasource"
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_the_unit_uses_notify_and_does_not_kill_jobs():
    unit = (ETC / "systemd/salusd.service").read_text()
    for line in ("Type=notify", "WatchdogSec=", "KillMode=process", "NoNewPrivileges=yes", "ExecReload="):
        assert line in unit


@pytest.mark.parametrize("name", ["salusd", "salus-admitd"])
def test_the_units_restrict_the_services_and_restart_them_however_often_they_fail(name):
    lines = (ETC / f"systemd/{name}.service").read_text().splitlines()
    wanted = [
        "NoNewPrivileges=yes", "PrivateMounts=yes", "PrivateTmp=yes", "ProtectHome=yes", "ProtectKernelTunables=yes",
        "ProtectSystem=strict", "Restart=always", "StartLimitIntervalSec=0", "UMask=0077",
    ]  # fmt: skip
    if name == "salusd":
        wanted += ["DevicePolicy=closed", "DeviceAllow=char-nvidia* rw"]
    else:
        wanted += ["CapabilityBoundingSet=", "MemoryDenyWriteExecute=yes", "PrivateDevices=yes", "ProcSubset=pid"]
        wanted += ["ProtectProc=invisible", "SystemCallFilter=~@privileged @resources"]
    assert [line for line in wanted if line not in lines] == []
    assert lines.index("StartLimitIntervalSec=0") < lines.index("[Service]"), "it is a key of [Unit]"


def test_salusd_has_the_capabilities_that_mps_and_sessions_need_and_no_others():
    (line,) = re.findall(r"^CapabilityBoundingSet=(.*)", (ETC / "systemd/salusd.service").read_text(), re.MULTILINE)
    sessions = {"CAP_DAC_READ_SEARCH", "CAP_KILL", "CAP_SYS_NICE", "CAP_SYS_PTRACE"}
    assert set(line.split()) == sessions | {"CAP_CHOWN", "CAP_SETGID", "CAP_SETUID"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize(("name", "exposure_max"), [("salusd", 3.3), ("salus-admitd", 1.5)])
def test_the_exposure_that_systemd_computes_does_not_grow(name, exposure_max):
    """salusd runs as root, signals and inspects jobs of all users, and opens GPUs; that alone is most of its 3.3."""
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(ETC / f"systemd/{name}.service")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    (exposure,) = re.findall(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert float(exposure) <= exposure_max, done.stdout
