"""Contradictions between values that are valid on their own."""

from pathlib import Path

import pytest

from nodedaemon.config import Config, Rejected, parse
from nodedaemon.config.check import lane_reserve_problem
from nodedaemon.config.keys import Settings

HOST = "DeviceName=host0 Type=host Memory=2G Cores=0"


def _findings(text: str) -> list[str]:
    loaded = parse(Path("c"), text.encode())
    return [str(finding) for finding in loaded.findings] if isinstance(loaded, Rejected) else []


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        (f"LaneReserve=2G\n{HOST}", "c:1: LaneReserve: on host0 (c:2): 2G leaves no memory for the jobs"),
        (f"{HOST} LaneReserve=3G", "c:1: LaneReserve: on host0 (c:1): 3G leaves no memory for the jobs"),
        (f"ShardUnit=1G LaneReserve=1280M\n{HOST}", "less than one ShardUnit (1G)"),
        (f"{HOST} Nodes=n1\nNodeName=n1 LaneReserve=4G", "c:2: LaneReserve: on host0 (c:1): 4G leaves no memory"),
        ("DeviceName=h Type=host", "c:1: Memory: is missing; a host device is a slice of memory such as Memory=2G"),
        ("DeviceName=g Type=cuda Cores=0", "c:1: Cores: does not apply to a device of type cuda"),
        (f"{HOST} Uuid=GPU-1", "c:1: Uuid: does not apply to a device of type host"),
        ("DeviceName=g[0-1] Type=cuda Uuid=GPU-1", "c:1: Uuid: names one device; write a record for each"),
        (f"{HOST}\nDeviceName=h1 Type=host Memory=1G Cores=0-1", "c:2: Cores: core 0 already belongs to host0"),
        (f"{HOST}\n{HOST}", "c:2: DeviceName: host0 already has a record, at c:1; write one record for each"),
        (f"{HOST} Nodes=n1\n{HOST}", "c:2: DeviceName: host0 already has a record, at c:1; write one record for each"),
        (f"{HOST}\n{HOST} Nodes=n1", "c:2: DeviceName: host0 already has a record, at c:1; write one record for each"),
        (
            "NodeName=n[1-3]\nNodeName=n[2-4]",
            "c:2: NodeName: n[2-3] already has a record, at c:1; write one record for each",
        ),
        (
            "PartitionName=p\nPartitionName=p",
            "c:2: PartitionName: p already has a record, at c:1; write one record for each",
        ),
        ("DeviceName=d[0-999] Nodes=n[0-999] Type=cuda", "c:1: DeviceName: names more than 131072 devices"),
        ("PartitionName=p Policy=fifo", "c:1: Policy: applies to nodes, but PartitionName=p names none; add Nodes="),
        (
            "PartitionName=p Nodes=n1 Policy=fifo\nPartitionName=q Nodes=n[1-2] Policy=srtf",
            "c:2: Policy: n1 is also in PartitionName=p (c:1), which says fifo; set it in a NodeName record",
        ),
        (
            "PartitionName=p Nodes=n1 Policy=fifo\nPartitionName=q Nodes=ALL Policy=srtf",
            "c:1: Policy: n1 is also in PartitionName=q (c:2), which says srtf; set it in a NodeName record",
        ),
        ("MetricsPort=6827", "c:1: MetricsPort: is the same as AdmissionPort (6827); give each its own"),
        ("AdmissionPort=9827", "c:1: MetricsPort: is the same as AdmissionPort (9827); give each its own"),
        ("ControlSocket=/run/salus/salusd.sock", "c:1: ControlSocket: is the same as DaemonSocket"),
        ("IdleRelease=2:00", "c:1: HangTimeout: is not longer than IdleRelease"),
        ("NodeName=n1 HangTimeout=1 IdleRelease=1", "c:1: HangTimeout: is not longer than IdleRelease"),
        ("ShareMode=mps LaneSharing=all", "c:1: ShareMode: mps serves one user at a time and needs LaneSharing=user"),
        (
            "LaneSharing=all\nDeviceName=g Type=cuda ShareMode=mps",
            "c:2: ShareMode: mps serves one user at a time and needs LaneSharing=user",
        ),
        ("StorageUrl=oracle://x", "c:1: StorageUrl: must be a sqlite, postgresql+psycopg"),
        ("StorageUrl=http://[", "c:1: StorageUrl: must be a sqlite, postgresql+psycopg"),
        (
            "StorageUrl=mysql+pymysql://u:hidden@h/d",
            "c:1: StorageUrl: contains a password; put it into StoragePassFile",
        ),
        ("StoragePassFile=/etc/salus/pass", "c:1: StoragePassFile: does not apply to SQLite; remove it"),
        ("NodeName=n[1-2]", "c:1: StorageUrl: SQLite allows writers on one host only, but there are 2 nodes"),
    ],
)
def test_contradictions_are_found(text, finding):
    found = _findings(text)
    assert any(finding in line for line in found), found
    assert len(found) == 1 or "SQLite allows" in "".join(found)
    assert "hidden" not in "".join(found)


@pytest.mark.parametrize(
    "text",
    [
        f"LaneReserve=1G\n{HOST}",
        "NodeName=n[1-2]\nSingleHost=yes",
        "NodeName=n[1-2]\nStorageUrl=postgresql+psycopg://salus@db/salus\nStoragePassFile=/etc/salus/pass",
        "MetricsPort=0 AdmissionMetricsPort=0",
        "PartitionName=p Nodes=n1 Policy=fifo\nPartitionName=q Nodes=n1 Policy=srtf\nNodeName=n1 Policy=fair",
        "PartitionName=p Nodes=n1 Policy=fifo\nPartitionName=q Nodes=n1 Policy=fifo",
        "PartitionName=p UnknownJob=declared",
        f"SingleHost=yes\n{HOST} Nodes=n1\n{HOST} Nodes=n2",
        "DeviceName=g[0-1] Type=cuda MaxLanes=2",
    ],
)
def test_values_that_agree_have_no_finding(text):
    assert _findings(text) == []


def test_a_misspelt_key_does_not_cause_a_second_finding():
    assert len(_findings("HangTimeot=5:00\nIdleRelease=2:00")) == 1
    assert len(_findings("HangTimeout=5M\nIdleRelease=2:00")) == 1
    assert len(_findings("DeviceName=h Typ=host Memory=1G")) == 1
    # Other contradictions are still reported.
    assert len(_findings("HangTimeot=5:00\nIdleRelease=2:00\nMetricsPort=6827")) == 2


def test_a_large_cluster_is_checked_once_for_each_kind_of_node():
    loaded = parse(Path("c"), b"SingleHost=yes\nNodeName=n[00001-60000] Policy=srtf\nNodeName=x[1-5000] MaxLanes=2\n")
    assert isinstance(loaded, Config)
    assert loaded.for_node("n30000").order.policy == "srtf"


def test_a_lane_reserve_must_leave_memory_for_a_shard():
    assert lane_reserve_problem(Settings(), 16 << 30) is None
    assert lane_reserve_problem(Settings(), 1 << 20) is not None
