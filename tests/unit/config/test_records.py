"""Defaults, overrides by node, partition and device, and the limits for the engine."""

from pathlib import Path

import pytest

from nodedaemon.config import Config, device_limits, load, load_or_raise, locate, parse, weight_of
from nodedaemon.config.choices import DeviceType, UnknownJob
from nodedaemon.core.errors import RequestError
from nodedaemon.core.types import MIB, DeviceLimits, JobClass

TEXT = """
ClusterName=lab
SingleHost=yes
Policy=srtf
DaemonSocket=/run/%c/%n/salusd.sock
AdmissionSocket=/run/%c/admitd.sock
PartitionName=debug Nodes=gpu[01-02] Policy=fifo UnknownJob=declared
NodeName=gpu01 Policy=pack MaxLanes=2 StateDir=/var/50%%/%n
DeviceName=host[0-1] Nodes=gpu01 Type=host Memory=2G Policy=priority
DeviceName=big Type=cuda Uuid=GPU-1 LaneReserve=24G
"""


@pytest.fixture
def config() -> Config:
    loaded = parse(Path("salus.conf"), TEXT.encode())
    assert isinstance(loaded, Config), str(loaded)
    return loaded


def test_the_most_specific_value_wins(config):
    assert config.settings.order.policy == "srtf"
    assert config.for_node("gpu03").order.policy == "srtf"
    assert config.for_node("gpu02").order.policy == "fifo"
    assert config.for_node("gpu01").order.policy == "pack"
    assert {
        device.settings.order.policy for device in config.devices_of("gpu01") if device.type is DeviceType.HOST
    } == {"priority"}


def test_a_partition_has_settings_for_its_jobs(config):
    assert config.for_partition("debug").admission.unknown_job is UnknownJob.DECLARED
    assert config.for_partition("other").admission.unknown_job is UnknownJob.EXCLUSIVE


def test_a_node_has_the_devices_that_records_name_for_it(config):
    assert [device.name for device in config.devices_of("gpu01")] == ["host0", "host1", "big"]
    assert [device.name for device in config.devices_of("gpu09")] == ["big"]
    assert config.devices_of("gpu01")[0].memory_bytes == 2 << 30


def test_a_detected_device_gets_the_record_with_its_uuid(config):
    assert config.for_device("gpu09", "GPU-1").lanes.lane_reserve_bytes == 24 << 30
    assert config.for_device("gpu01", "GPU-2").lanes.lanes_max == 2
    assert config.for_device("gpu01", "").lanes.lanes_max == 2


def test_percent_signs_in_paths_become_the_cluster_and_the_node(config):
    assert config.for_node("gpu03").daemon.socket == "/run/lab/gpu03/salusd.sock"
    assert config.for_node("gpu01").daemon.state_dir == "/var/50%/gpu01"
    assert config.settings.admission.socket == "/run/lab/admitd.sock"


def test_node_names_are_collected_from_all_records(config):
    assert config.node_names() == ("gpu01", "gpu02")


def test_defaults_are_those_of_the_engine():
    default = load(None)
    assert isinstance(default, Config)
    assert device_limits(default.settings, 64 * MIB) == DeviceLimits(64 * MIB, lane_reserve_bytes=16 * MIB)


def test_classes_have_weights():
    settings = Config().settings
    assert [weight_of(settings, job_class) for job_class in JobClass] == [4, 2, 1]


def test_load_or_raise_lists_all_findings_in_one_error(tmp_path):
    path = tmp_path / "salus.conf"
    path.write_text("MaxLanes=x\nPolicy=y\n")
    with pytest.raises(RequestError) as raised:
        load_or_raise(path)
    assert str(raised.value).count(f"{path}:") == 3
    path.write_text("")
    assert load_or_raise(path).settings.lanes.lanes_max == 4


def test_the_file_is_searched_in_order(monkeypatch, tmp_path):
    system = tmp_path / "system.conf"
    monkeypatch.setattr("nodedaemon.config.loading.SYSTEM_FILE", system)
    assert locate(Path("a"), {"SALUS_CONF": "b"}) == Path("a")
    assert locate(None, {"SALUS_CONF": "b"}) == Path("b")
    beside = locate(None, {})
    assert beside is not None
    assert beside.parts[-2:] == ("etc", "salus.conf")
    system.write_text("")
    assert locate(None, {}) == system
