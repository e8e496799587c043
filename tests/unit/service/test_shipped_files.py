"""The files of etc/ for systemd, Prometheus and Grafana name metrics and programs that exist."""

import json
import re
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
