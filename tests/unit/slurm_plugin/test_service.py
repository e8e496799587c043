"""salus-admitd's answers with a fake database, which may be slow or absent, and a fake Slurm."""

import asyncio
import threading
from dataclasses import dataclass, field, replace

import msgspec
import pytest

from nodedaemon.config import Config, load_or_raise
from nodedaemon.config.keys import Settings
from nodedaemon.core.errors import OperatingError
from nodedaemon.core.types import MIB, Profile
from nodedaemon.wire.envelope import NotPermittedError, Request
from nodedaemon.wire.rate import UserRate
from nodedaemon.wire.segment import parse_segment
from slurm_plugin.admitd.answers import SubmitAnswers
from slurm_plugin.admitd.catalog import catalog_of
from slurm_plugin.admitd.credentials import check, digest, split
from slurm_plugin.admitd.database import ProfileLookup
from slurm_plugin.admitd.decision_queue import DECISIONS_MAX, DecisionQueue
from slurm_plugin.admitd.profile_cache import ProfileCache
from slurm_plugin.admitd.readmission import Readmission
from slurm_plugin.slurm import QueuedJob, SlurmError, SlurmNode

NODES = [SlurmNode("node1", "gpu:2(S:0-1),shard:96,salus:64", ("main",))]


@dataclass
class FakeRecords:
    profiles: dict = field(default_factory=dict)
    written: list = field(default_factory=list)
    is_down: bool = False
    hold: threading.Event | None = None

    def find(self, _user, signature):
        if self.hold:
            self.hold.wait(10)
        if self.is_down:
            raise OperatingError("database: down")
        return self.profiles.get(signature, ProfileLookup())

    def has_changed(self, _since):
        return True

    def write(self, records):
        if self.is_down:
            raise OperatingError("database: down")
        self.written.extend(records)


@dataclass
class FakeSlurm:
    queue: list = field(default_factory=list)
    changes: dict = field(default_factory=dict)
    requeued: list = field(default_factory=list)
    refuses: bool = False

    def jobs(self):
        return self.queue

    def update_job(self, target, change):
        if self.refuses:
            raise SlurmError("Job is no longer pending execution")
        self.changes[target] = change

    def requeue_job(self, target):
        self.requeued.append(target)


def configuration(**changes):
    lanes = replace(Settings().lanes, lane_reserve_bytes=256 * MIB)
    return Config(replace(Settings(), lanes=lanes, admission=replace(Settings().admission, **changes)))


def service(records, fresh_s=30.0, **changes):
    config = configuration(**changes)
    profiles, decisions = ProfileCache(records, fresh_s), DecisionQueue(records)
    return SubmitAnswers(config, profiles, decisions, catalog_of(config, NODES, "main"), (22, 5))


def request(signature="job:ab", **fields):
    job = {"tres_per_node": "gres:salus:1", **fields}
    return Request("submit", {"uid": 5, "batch": True, "job": job, "options": {"SALUS_SIGNATURE": signature}})


def test_a_device_has_the_shards_that_slurm_counts():
    device = catalog_of(configuration(), NODES, "main").for_partitions(["main"])[0]
    assert (device.units_total, device.lane_reserve_bytes) == (48, 256 * MIB)
    assert catalog_of(configuration(), NODES, "main").for_partitions(["nowhere"]) == []


def test_an_automatic_reserve_is_the_memory_that_gres_conf_does_not_count(tmp_path):
    def device(lines, shards):
        (tmp_path / "salus.conf").write_text(f"ClusterName=c\nAutoDetect=off\n{lines}\n")
        nodes = [SlurmNode("node1", f"gpu:1,shard:{shards},salus:64", ("main",))]
        found = catalog_of(load_or_raise(tmp_path / "salus.conf"), nodes, "main").for_partitions(["main"])[0]
        return found.units_total, found.capacity_bytes // MIB, found.lane_reserve_bytes // MIB

    host = "DeviceName=host0 Type=host Nodes=node1 Memory=1024M"
    # As `salus config gres` proposes it: a quarter of the device.
    assert device(host, 48) == (48, 1024, 256)
    assert device(host, 60) == (60, 1024, 64)
    assert device(f"LaneReserve=128M\n{host}", 48) == (48, 896, 128)
    # The reserve is 0 if the memory is not in salus.conf, and if there are more shards than memory.
    assert device("DeviceName=gpu0 Type=cuda Nodes=node1", 48) == (48, 768, 0)
    assert device(host, 80) == (80, 1280, 0)


def test_all_partitions_of_a_job_decide_whatever_their_order(tmp_path):
    (tmp_path / "salus.conf").write_text(
        "ClusterName=c\nAutoDetect=off\nLaneReserve=256M\n"
        "PartitionName=wide Headroom=50% DefaultClass=best-effort\nPartitionName=closed UnknownJob=refuse\n"
    )
    config = load_or_raise(tmp_path / "salus.conf")
    records = FakeRecords({"job:ab": ProfileLookup(Profile(100 * MIB, 0), 1)})
    nodes = [replace(NODES[0], partitions=("main", "wide", "closed"))]

    async def scenario(partition, signature="job:ab"):
        admission = SubmitAnswers(
            config, ProfileCache(records, 30.0), DecisionQueue(records), catalog_of(config, nodes, "main"), (22, 5)
        )
        return await admission.answer(request(signature, partition=partition))

    for partition in ("main,wide", "wide,main", ",".join(["main", *["wide", "main"] * 5000])):
        answer = asyncio.run(scenario(partition))
        segment = parse_segment(answer["set"]["admin_comment"])
        assert (segment.shard_count, segment.job_class) == (10, "best-effort")
    assert parse_segment(asyncio.run(scenario("main"))["set"]["admin_comment"]).shard_count == 7
    assert asyncio.run(scenario("main", "job:new"))["ok"]
    assert "never measured" in asyncio.run(scenario("main,closed", "job:new")).why


@pytest.mark.parametrize("line", ["LaneSharing=account", "NodeName=node1 LaneSharing=account"])
def test_memory_shared_by_account_needs_slurms_check_on_the_nodes_that_a_job_may_get(tmp_path, line):
    (tmp_path / "salus.conf").write_text(f"ClusterName=c\nAutoDetect=off\n{line}\n")
    nodes = [NODES[0], SlurmNode("node2", "gpu:2,shard:96,salus:64", ("other",))]
    catalog = catalog_of(load_or_raise(tmp_path / "salus.conf"), nodes, "main")
    assert catalog.is_memory_shared_by_account(["main"])
    assert catalog.is_memory_shared_by_account(["other"]) is (not line.startswith("NodeName"))
    assert not catalog_of(configuration(), nodes, "main").is_memory_shared_by_account(["main"])


def test_an_unknown_job_is_looked_up_again_and_a_known_one_comes_from_memory():
    async def scenario():
        records = FakeRecords()
        admission = service(records)
        first = await admission.answer(request())
        records.profiles["job:ab"] = ProfileLookup(Profile(100 * MIB, 0), 1)
        second = await admission.answer(request())
        records.is_down = True
        third = await admission.answer(request())
        return first, second, third

    first, second, third = asyncio.run(scenario())
    assert first["set"]["tres_per_node"] == "gres:salus:1,gres:shard:48"
    assert second["set"]["tres_per_node"] == third["set"]["tres_per_node"] == "gres:salus:1,gres:shard:7"


def test_if_the_database_is_down_or_slow_a_new_job_is_unknown_and_old_profiles_are_used():
    async def scenario():
        records = FakeRecords({"job:ab": ProfileLookup(Profile(100 * MIB, 0), 1)})
        admission = service(records, fresh_s=0.0)
        await admission.answer(request())
        records.is_down = True
        stale, unknown = await admission.answer(request()), await admission.answer(request("job:new"))
        records.is_down, records.hold = False, threading.Event()
        slow = await admission.answer(request("job:slow"))
        records.hold.set()
        return stale, unknown, slow, admission.profiles.lookup_failures

    stale, unknown, slow, failures = asyncio.run(scenario())
    assert stale["set"]["tres_per_node"].endswith("shard:7")
    assert unknown["set"]["tres_per_node"] == slow["set"]["tres_per_node"] == "gres:salus:1,gres:shard:48"
    assert failures == 3


def test_every_decision_is_recorded_with_its_reasons_even_after_the_database_was_down():
    async def scenario():
        records = FakeRecords(is_down=True)
        admission = service(records)
        await admission.answer(request())
        await admission.answer(request(tres_per_node="gres:salus:2"))
        assert not await admission.decisions.flush()
        records.is_down = False
        assert await admission.decisions.flush()
        return records.written

    admitted, refused = asyncio.run(scenario())
    assert (admitted.decision, admitted.basis, admitted.charge_shards) == ("admit", "exclusive", 48)
    assert (refused.decision, len(refused.reasons)) == ("refuse", 1)


def test_an_admitted_job_is_recorded_with_the_version_of_its_profile():
    async def scenario():
        records = FakeRecords({"job:ab": ProfileLookup(Profile(100 * MIB, 0), 3)})
        admission = service(records)
        await admission.answer(request())
        await admission.answer(request(tres_per_node="gres:salus:2"))
        await admission.decisions.flush()
        return [record.profile_version for record in records.written]

    assert asyncio.run(scenario()) == [3, None]


def test_the_queue_of_decisions_is_bounded():
    async def scenario():
        queue = DecisionQueue(FakeRecords(is_down=True))
        for _ in range(DECISIONS_MAX + 3):
            queue.record(None)
        return queue.dropped_count

    assert asyncio.run(scenario()) == 3


OLD = {"tres_per_node": "gres:salus:1,gres:shard:48", "admin_comment": "salus:1;adm=x;N=48;K=exclusive;S=job:ab"}


@pytest.mark.parametrize(
    ("changed", "old", "is_ok"),
    [
        ({"tres_per_node": "gres:salus:1,gres:shard:1"}, OLD, False),
        ({"tres_per_node": "gres:shard:1"}, {"tres_per_node": ""}, False),
        ({"partition": "main"}, OLD, True),
        ({"partition": "nowhere"}, OLD, False),
        ({"partition": "main"}, {"tres_per_node": "gres:gpu:1"}, True),
    ],
)
def test_a_user_may_move_a_job_to_another_partition_but_not_change_its_charge(changed, old, is_ok):
    async def scenario():
        request = Request("modify", {"uid": 5, "job": changed, "old": old, "id": 3})
        return msgspec.to_builtins(await service(FakeRecords()).answer(request))

    answer = asyncio.run(scenario())
    assert answer["ok"] is is_ok
    assert is_ok or "salus: modify:" in answer["why"]


def queued(comment, **changes):
    job = QueuedJob(id=7, target="7_[2-12]", state="PENDING", uid=5, partition="main",
                    tres_per_node="gres:salus:1,gres:shard:48", admin_comment=comment)  # fmt: skip
    return replace(job, **changes)


def readmit(records, slurm):
    async def scenario():
        await Readmission(service(records), slurm).round()

    asyncio.run(scenario())
    return slurm


def test_waiting_jobs_get_their_charge_and_their_own_throttle_once_known():
    comment = "site salus:1;adm=x;N=48;K=exclusive;C=normal;S=job:ab;A=4"
    known = FakeRecords({"job:ab": ProfileLookup(Profile(100 * MIB, 0), 1)})
    change = readmit(known, FakeSlurm([queued(comment, array_tasks="2-12%1")])).changes["7_[2-12]"]
    assert (change.gres, change.array_throttle) == ("salus:1,shard:7", 4)
    charged = queued(change.admin_comment, tres_per_node="gres:salus:1,gres:shard:7", array_tasks="2-12%1")
    again = readmit(known, FakeSlurm([charged])).changes["7_[2-12]"]
    assert (again.gres, again.array_throttle) == (None, 4)
    assert readmit(known, FakeSlurm([replace(charged, array_tasks="2-12%4")])).changes == {}
    assert change.admin_comment.startswith("site ")
    assert parse_segment(change.admin_comment).shard_count == 7
    assert readmit(FakeRecords(), FakeSlurm([queued(comment)])).changes == {}


def test_a_larger_profile_raises_the_charge_of_waiting_jobs_but_not_of_running_ones():
    known = FakeRecords({"job:ab": ProfileLookup(Profile(200 * MIB, 0), 2)})
    comment = "salus:1;adm=x;P=115343360;E=0;N=7;K=shared;C=normal;S=job:ab"
    waiting = queued(comment, target="8", tres_per_node="gres:salus:1,gres:shard:7")
    running = replace(waiting, target="9", state="RUNNING")
    assert {t: c.gres for t, c in readmit(known, FakeSlurm([waiting, running])).changes.items()} == {
        "8": "salus:1,shard:14"
    }


def test_a_measured_job_of_unknown_job_requeue_is_requeued_and_then_charged_and_started():
    known = FakeRecords({"job:ab": ProfileLookup(Profile(100 * MIB, 0), 1)})
    comment = "salus:1;adm=x;N=48;K=requeue;C=normal;S=job:ab"
    assert readmit(known, FakeSlurm([queued(comment, state="RUNNING")])).requeued == ["7_[2-12]"]
    change = readmit(known, FakeSlurm([queued(comment)])).changes["7_[2-12]"]
    assert change.is_begin_soon
    assert change.gres == "salus:1,shard:7"


def test_jobs_that_are_not_ours_or_that_have_just_started_are_left_alone():
    known = FakeRecords({"job:ab": ProfileLookup(Profile(100 * MIB, 0), 1)})
    # The last was submitted while salus-admitd was down.
    assert readmit(known, FakeSlurm([queued("not ours"), queued(""), queued("salus:1;K=lost")])).changes == {}
    assert readmit(known, FakeSlurm([queued("salus:1;adm=x;N=48;K=exclusive;S=job:ab")], refuses=True)).changes == {}


UNMUNGED = (
    "STATUS:          Success (0)\nENCODE_TIME:     2026-11-16 06:00:00 +0000 (1000)\nUID:             games (5)\n\n"
)


def test_a_credential_is_valid_for_one_request_and_a_limited_time():
    asked = b'{"verb": "status"}'
    assert check(UNMUNGED + digest(asked), asked, 60, 1010) == 5
    with pytest.raises(NotPermittedError, match="another request"):
        check(UNMUNGED + digest(asked), b'{"verb": "profiles"}', 60, 1010)
    with pytest.raises(NotPermittedError, match="too old"):
        check(UNMUNGED + digest(asked), asked, 60, 1061)
    with pytest.raises(NotPermittedError, match="did not name the user"):
        check("", asked, 60, 1010)


def test_a_line_begins_with_a_credential():
    assert split(b'MUNGE:Aw+/=: {"verb": "a b"}\n') == (b"MUNGE:Aw+/=:", b'{"verb": "a b"}')
    for line in (
        b"",
        b"{}\n",
        b"MUNGE:: {}",
        b"MUNGE:a b: {}",
        b"MUNGE:a",
        b"MUNGE:\xff: {}",
        b"MUNGE:" + b"a" * 4096 + b":",
    ):
        with pytest.raises(NotPermittedError, match="none before the request"):
            split(line)


def test_one_users_requests_do_not_count_for_another():
    now = [0.0]
    rate = UserRate(clock=lambda: now[0])
    assert [rate.allows(5, 2) for _ in range(3)] == [True, True, False]
    assert rate.allows(6, 2)
    now[0] = 1.0
    assert rate.allows(5, 2)
