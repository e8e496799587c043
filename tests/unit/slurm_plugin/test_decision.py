"""What a submit gets: by profile, by declaration, unknown, or refused with every reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodedaemon.config.choices import UnknownJob
from nodedaemon.core.admission import DeviceView
from nodedaemon.core.memory import charge_units
from nodedaemon.core.types import GIB, MIB, DeviceId, Profile
from slurm_plugin.admitd.decision import AdmissionRules, ProfileLookup, decide
from slurm_plugin.admitd.jobdesc import read_submission
from slurm_plugin.slurm.tres import parse_tres

DEVICE = DeviceView(DeviceId("node1/host0"), GIB, 256 * MIB)


def submission(**options):
    fields = {"tres_per_node": "gres:salus:1", **options.pop("fields", {})}
    return read_submission(5, fields, {"SALUS_SIGNATURE": "job:ab", **options})


def charge(verdict, asked):
    return {tres.name: tres.count for tres in parse_tres(verdict.changes(asked)["tres_per_node"])}


def test_a_known_job_is_charged_by_its_profile_with_headroom():
    asked = submission()
    verdict = decide(asked, ProfileLookup(Profile(100 * MIB, 300 * MIB), 3), [DEVICE], AdmissionRules(), "x")
    # 110 MiB kept, 330 MiB borrowed of which 256 MiB are the reserve: 184 MiB are 12 shards of 16 MiB.
    assert charge(verdict, asked) == {"salus": 1, "shard": 12}
    assert (verdict.basis, verdict.profile_version, verdict.segment.kind) == ("profile", 3, "shared")
    assert "P=115343360;E=346030080;N=12;K=shared" in verdict.changes(asked)["admin_comment"]


def test_a_declaration_raises_a_profile_and_never_lowers_it():
    known = ProfileLookup(Profile(100 * MIB, 0), 1)
    low = decide(submission(SALUS_MEM="10M"), known, [DEVICE], AdmissionRules(), "x")
    high = decide(submission(SALUS_MEM="500M"), known, [DEVICE], AdmissionRules(), "x")
    assert low.segment.persistent_bytes == 110 * MIB
    assert high.segment.persistent_bytes == 500 * MIB


def test_an_unknown_job_gets_a_whole_device():
    asked = submission()
    assert charge(decide(asked, ProfileLookup(), [DEVICE], AdmissionRules(), "x"), asked) == {"salus": 1, "shard": 48}
    newer = AdmissionRules(is_whole_device_gpu=True)
    assert charge(decide(asked, ProfileLookup(), [DEVICE], newer, "x"), asked) == {"salus": 1, "gpu": 1}


@pytest.mark.parametrize(
    ("rule", "memory", "is_admitted"),
    [
        (UnknownJob.EXCLUSIVE, "", True), (UnknownJob.EXCLUSIVE, "1G", True), (UnknownJob.DECLARED, "", False),
        (UnknownJob.DECLARED, "1G", True), (UnknownJob.REFUSE, "", False), (UnknownJob.REFUSE, "1G", False),
        (UnknownJob.REQUEUE, "", True),
    ],
)  # fmt: skip
def test_the_rule_for_unknown_jobs(rule, memory, is_admitted):
    options = {"SALUS_MEM": memory} if memory else {}
    verdict = decide(submission(**options), ProfileLookup(), [DEVICE], AdmissionRules(unknown_job=rule), "x")
    assert verdict.is_admitted is is_admitted
    assert is_admitted or "never measured" in verdict.say


def test_requeue_is_for_batch_jobs_that_may_be_requeued():
    rules = AdmissionRules(unknown_job=UnknownJob.REQUEUE)
    batch = read_submission(5, {"tres_per_node": "gres:salus:1"}, {}, is_batch=True)
    srun = read_submission(5, {"tres_per_node": "gres:salus:1"}, {}, is_batch=False)
    kept = read_submission(5, {"tres_per_node": "gres:salus:1", "requeue": 0}, {}, is_batch=True)
    kinds = [decide(asked, ProfileLookup(), [DEVICE], rules, "x").segment.kind for asked in (batch, srun, kept)]
    assert kinds == ["requeue", "exclusive", "exclusive"]


def test_probe_tasks_throttle_an_unknown_array_and_keep_the_users_limit():
    rules = AdmissionRules(probe_task_count=1)
    free, limited, tight = (submission(fields={"array_inx": text}) for text in ("1-12", "1-12%4", "1-12%1"))
    verdicts = [decide(asked, ProfileLookup(), [DEVICE], rules, "x") for asked in (free, limited, tight)]
    assert [verdict.segment.throttle for verdict in verdicts] == [0, 4, None]
    assert [verdicts[0].changes(free)["array_inx"], verdicts[1].changes(limited)["array_inx"]] == ["1-12%1", "1-12%1"]
    assert "array_inx" not in verdicts[2].changes(tight)
    known = decide(free, ProfileLookup(Profile(MIB, MIB), 1), [DEVICE], rules, "x")
    assert "array_inx" not in known.changes(free)


def test_class_high_needs_an_allowed_qos_account_or_partition():
    asked = submission(SALUS_CLASS="high", fields={"qos": "gold", "partition": "a"})
    assert not decide(asked, ProfileLookup(), [DEVICE], AdmissionRules(), "x").is_admitted
    assert decide(asked, ProfileLookup(), [DEVICE], AdmissionRules(high_qos=frozenset({"gold"})), "x").is_admitted
    assert decide(asked, ProfileLookup(), [DEVICE], AdmissionRules(high_partitions=frozenset({"a"})), "x").is_admitted
    both = submission(SALUS_CLASS="high", fields={"partition": "a,b"})
    assert not decide(
        both, ProfileLookup(), [DEVICE], AdmissionRules(high_partitions=frozenset({"a"})), "x"
    ).is_admitted


def test_what_no_device_holds_is_refused_and_what_one_holds_alone_gets_it():
    over = decide(submission(SALUS_MEM="900M,300M"), ProfileLookup(), [DEVICE], AdmissionRules(), "x")
    alone = decide(submission(SALUS_MEM="900M,100M"), ProfileLookup(), [DEVICE], AdmissionRules(), "x")
    assert not over.is_admitted
    assert "1258291200 bytes needed, 1073741824 free" in over.say
    assert (alone.is_admitted, alone.segment.kind, alone.segment.shard_count) == (True, "exclusive", 48)


def test_devices_that_differ_are_charged_by_the_smallest_reserve():
    small = DeviceView(DeviceId("b"), 2 * GIB, 128 * MIB)
    verdict = decide(submission(SALUS_MEM="100M,256M"), ProfileLookup(), [DEVICE, small], AdmissionRules(), "x")
    assert verdict.segment.shard_count == charge_units(100 * MIB, 256 * MIB, 128 * MIB)


def test_a_partition_without_devices_is_refused():
    assert "no device" in decide(submission(), ProfileLookup(), [], AdmissionRules(), "x").say


@given(
    st.integers(1, 2 * GIB), st.integers(0, 2 * GIB), st.integers(0, 50),
    st.lists(st.tuples(st.integers(64 * MIB, 2 * GIB), st.integers(0, GIB)), min_size=1, max_size=4),
)  # fmt: skip
def test_an_admitted_charge_covers_the_job_on_every_device_where_it_fits(persistent, ephemeral, headroom, sizes):
    devices = [
        DeviceView(DeviceId(str(i)), capacity, min(reserve, capacity // 2))
        for i, (capacity, reserve) in enumerate(sizes)
    ]
    asked = submission()
    verdict = decide(
        asked, ProfileLookup(Profile(persistent, ephemeral), 1), devices, AdmissionRules(headroom_percent=headroom), "x"
    )
    if not verdict.is_admitted:
        assert max(device.capacity_bytes for device in devices) < verdict.reasons[0].needed
        return
    units = verdict.segment.shard_count
    for device in devices:
        if units <= device.units_total and verdict.segment.kind == "shared":
            assert units >= charge_units(persistent, ephemeral, device.lane_reserve_bytes, device.unit_bytes)
