"""The decision on a submission: by profile, by declaration, for an unknown job, or a refusal with its reasons."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodedaemon.config import Config
from nodedaemon.config.loading import parse
from nodedaemon.core.admission import DeviceView
from nodedaemon.core.memory import charge_units
from nodedaemon.core.types import GIB, MIB, DeviceId, Profile
from slurm_plugin.admitd.decision import AdmissionRules, decide, strictest
from slurm_plugin.admitd.jobdesc import read_submission
from slurm_plugin.slurm import read_enforcement
from slurm_plugin.slurm.tres import parse_tres

DEVICE = DeviceView(DeviceId("node1/host0"), GIB, 256 * MIB)


def rules(*lines, release=(22, 5), enforced="", is_shared_by_account=False):
    """The rules that these lines of salus.conf make."""
    config = parse(Path("salus.conf"), "\n".join(["ClusterName=lab", *lines, ""]).encode())
    assert isinstance(config, Config), config
    return AdmissionRules(config.settings, release, read_enforcement(enforced), is_shared_by_account)


def verdict_of(asked, *lines, profile=None, devices=(DEVICE,), bound=None, **rule_options):
    return decide(asked, profile, devices, rules(*lines, **rule_options), "x", bound)


def submission(**options):
    fields = {"tres_per_node": "gres:salus:1", **options.pop("fields", {})}
    return read_submission(5, fields, {"SALUS_SIGNATURE": "job:ab", **options})


def charge(verdict, asked):
    return {tres.name: tres.count for tres in parse_tres(verdict.changes(asked)["tres_per_node"])}


def test_a_known_job_is_charged_by_its_profile_with_headroom():
    asked = submission()
    verdict = verdict_of(asked, profile=Profile(100 * MIB, 300 * MIB))
    # 110 MiB persistent and 330 MiB ephemeral, of which the reserve covers 256 MiB: 184 MiB are 12 shards of 16 MiB.
    assert charge(verdict, asked) == {"salus": 1, "shard": 12}
    assert (verdict.basis, verdict.segment.kind) == ("profile", "shared")
    assert "P=115343360;E=346030080;N=12;K=shared" in verdict.changes(asked)["admin_comment"]


@pytest.mark.parametrize(("declared", "charged_mib"), [("10M", 110), ("500M", 500)])
def test_a_declaration_raises_a_profile_and_never_lowers_it(declared, charged_mib):
    verdict = verdict_of(submission(SALUS_MEM=declared), profile=Profile(100 * MIB, 0))
    assert verdict.segment.persistent_bytes == charged_mib * MIB


def test_a_forgotten_job_is_unknown_but_a_declaration_counts_as_at_least_what_was_measured():
    forgotten = Profile(100 * MIB, 300 * MIB)
    assert verdict_of(submission(), bound=forgotten).segment.kind == "exclusive"
    low = verdict_of(submission(SALUS_MEM="1M,1M"), bound=forgotten).segment
    assert (low.kind, low.persistent_bytes, low.ephemeral_bytes) == ("shared", 110 * MIB, 330 * MIB)
    high = verdict_of(submission(SALUS_MEM="200M,400M"), bound=forgotten).segment
    assert (high.persistent_bytes, high.ephemeral_bytes) == (200 * MIB, 400 * MIB)


@pytest.mark.parametrize(("release", "whole"), [((22, 5), {"shard": 48}), ((24, 11), {"gpu": 1})])
def test_an_unknown_job_gets_a_whole_device(release, whole):
    asked = submission()
    assert charge(verdict_of(asked, release=release), asked) == {"salus": 1, **whole}


@pytest.mark.parametrize(
    ("rule", "memory", "is_admitted"),
    [
        ("exclusive", "", True), ("exclusive", "1G", True), ("declared", "", False), ("declared", "1G", True),
        ("refuse", "", False), ("refuse", "1G", False), ("requeue", "", True),
    ],
)  # fmt: skip
def test_the_rule_for_unknown_jobs_decides_which_are_admitted(rule, memory, is_admitted):
    options = {"SALUS_MEM": memory} if memory else {}
    verdict = verdict_of(submission(**options), f"UnknownJob={rule}")
    assert verdict.is_admitted is is_admitted
    assert is_admitted or "never measured" in verdict.message


@pytest.mark.parametrize(
    ("fields", "is_batch", "kind"),
    [({}, True, "requeue"), ({}, False, "exclusive"), ({"requeue": 0}, True, "exclusive")],
    ids=["sbatch", "srun", "sbatch --no-requeue"],
)
def test_requeue_is_for_batch_jobs_that_may_be_requeued(fields, is_batch, kind):
    asked = read_submission(5, {"tres_per_node": "gres:salus:1", **fields}, {}, is_batch=is_batch)
    assert verdict_of(asked, "UnknownJob=requeue").segment.kind == kind


@pytest.mark.parametrize(
    ("array", "throttle", "changed"), [("1-12", 0, "1-12%1"), ("1-12%4", 4, "1-12%1"), ("1-12%1", None, None)]
)
def test_probe_tasks_throttle_an_unknown_array_and_keep_the_users_limit(array, throttle, changed):
    asked = submission(fields={"array_inx": array})
    verdict = verdict_of(asked, "ProbeTasks=1")
    assert (verdict.segment.throttle, verdict.changes(asked).get("array_inx")) == (throttle, changed)
    known = verdict_of(asked, "ProbeTasks=1", profile=Profile(MIB, MIB))
    assert "array_inx" not in known.changes(asked)


@pytest.mark.parametrize(
    ("line", "fields", "is_admitted"),
    [
        ("HighQOS=silver", {"qos": "gold", "partition": "a"}, False),
        ("HighQOS=gold", {"qos": "gold", "partition": "a"}, True),
        ("HighAccounts=physics", {"account": "physics"}, True),
        ("HighPartitions=a", {"partition": "a"}, True),
        ("HighPartitions=a", {"partition": "a,b"}, False),
        ("HighPartitions=a", {}, False),
    ],
)
def test_class_high_needs_an_allowed_qos_account_or_partition(line, fields, is_admitted):
    asked = submission(SALUS_CLASS="high", fields=fields)
    assert verdict_of(asked, line, enforced="qos").is_admitted is is_admitted


@pytest.mark.parametrize(
    ("line", "enforced", "is_admitted"),
    [
        ("HighQOS=gold", "", False), ("HighQOS=gold", "associations,limits", False), ("HighQOS=gold", "qos", True),
        ("HighQOS=gold", "all", True),
        ("HighAccounts=physics", "none", False), ("HighAccounts=physics", "associations", True),
        ("HighAccounts=physics", "safe", True), ("HighAccounts=physics", "qos", True),
        ("HighAccounts=physics", "nosteps", False), ("HighPartitions=a", "", True),
    ],
)  # fmt: skip
def test_a_qos_or_an_account_allows_class_high_only_if_slurm_checks_it(line, enforced, is_admitted):
    fields = {"qos": "gold", "account": "physics", "partition": "a"}
    verdict = verdict_of(submission(SALUS_CLASS="high", fields=fields), line, enforced=enforced)
    assert verdict.is_admitted is is_admitted
    assert is_admitted or "AccountingStorageEnforce lacks" in verdict.message
    assert verdict_of(submission(fields=fields), line, enforced=enforced).is_admitted, "other classes are not concerned"


@pytest.mark.parametrize(("enforced", "is_admitted"), [("", False), ("associations", True), ("limits", True)])
def test_memory_is_shared_by_account_only_if_slurm_checks_accounts(enforced, is_admitted):
    verdict = verdict_of(submission(), enforced=enforced, is_shared_by_account=True)
    assert verdict.is_admitted is is_admitted
    assert is_admitted or "LaneSharing=account" in verdict.message
    assert verdict_of(submission(), enforced=enforced).is_admitted


def test_of_several_partitions_a_refusal_wins_and_else_the_largest_charge_and_the_lowest_class():
    profile = Profile(100 * MIB, 0)

    def decided(*lines, asked=None, **options):
        return verdict_of(asked or submission(), *lines, **options)

    low, high = decided("Headroom=0%", profile=profile), decided("Headroom=50%", profile=profile)
    assert [strictest(pair).segment.shard_count for pair in ([low, high], [high, low])] == [10, 10]
    urgent = decided("DefaultClass=high", "Headroom=50%", profile=profile)
    lazy = decided("DefaultClass=best-effort", profile=profile)
    mixed = strictest([urgent, low, lazy])
    assert (mixed.segment.job_class, mixed.segment.shard_count) == ("best-effort", 10)
    refused = decided("UnknownJob=refuse")
    assert strictest([decided(), refused]) is refused
    array = submission(fields={"array_inx": "1-12"})
    probed = decided("ProbeTasks=3", asked=array)
    assert strictest([decided(asked=array), probed, decided("ProbeTasks=5", asked=array)]).probe_task_count == 3
    requeued, alone = decided("UnknownJob=requeue"), decided()
    assert [strictest(pair).segment.kind for pair in ([requeued, alone], [alone, requeued])] == ["exclusive"] * 2


def test_a_job_that_fits_no_device_is_refused_and_one_that_fits_only_alone_gets_a_whole_device():
    over = verdict_of(submission(SALUS_MEM="900M,300M"))
    alone = verdict_of(submission(SALUS_MEM="900M,100M"))
    assert not over.is_admitted
    assert "1258291200 bytes needed, 1073741824 free" in over.message
    assert (alone.is_admitted, alone.segment.kind, alone.segment.shard_count) == (True, "exclusive", 48)


def test_devices_that_differ_are_charged_by_the_smallest_reserve():
    small = DeviceView(DeviceId("b"), 2 * GIB, 128 * MIB)
    verdict = verdict_of(submission(SALUS_MEM="100M,256M"), devices=[DEVICE, small])
    assert verdict.segment.shard_count == charge_units(100 * MIB, 256 * MIB, 128 * MIB)


def test_a_partition_without_devices_is_refused():
    assert "no device" in verdict_of(submission(), devices=[]).message


@given(
    st.integers(1, 2 * GIB), st.integers(0, 2 * GIB), st.integers(0, 50),
    st.lists(st.tuples(st.integers(64 * MIB, 2 * GIB), st.integers(0, GIB)), min_size=1, max_size=4),
)  # fmt: skip
def test_an_admitted_charge_covers_the_job_on_every_device_where_it_fits(persistent, ephemeral, headroom, sizes):
    devices = [
        DeviceView(DeviceId(str(i)), capacity, min(reserve, capacity // 2))
        for i, (capacity, reserve) in enumerate(sizes)
    ]
    profile = Profile(persistent, ephemeral)
    verdict = verdict_of(submission(), f"Headroom={headroom}%", profile=profile, devices=devices)
    if not verdict.is_admitted:
        assert max(device.capacity_bytes for device in devices) < verdict.reasons[0].needed
        return
    units = verdict.segment.shard_count
    for device in devices:
        if units <= device.units_total and verdict.segment.kind == "shared":
            assert units >= charge_units(persistent, ephemeral, device.lane_reserve_bytes, device.unit_bytes)
