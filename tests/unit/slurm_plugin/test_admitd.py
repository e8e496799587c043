"""The server of salus-admitd: a reload is complete or changes nothing, and each user's requests are limited."""

import asyncio

import msgspec
import pytest

from nodedaemon.config import load_or_raise
from nodedaemon.core.errors import OperatingError, RequestError
from nodedaemon.core.types import MIB, Profile
from nodedaemon.wire.envelope import Request
from slurm_plugin.admitd import server as admitd
from slurm_plugin.admitd.database import ProfileLookup
from slurm_plugin.admitd.server import AdmissionServer
from slurm_plugin.slurm import SlurmNode

BASE = """
ClusterName=test
LaneReserve=256M
SubmitRate=3
AdmissionRate=2
AdmissionPort=0
"""


class FakeSlurm:
    def release(self):
        return (22, 5)

    def nodes(self):
        return [SlurmNode("node1", "gpu:2,shard:96,salus:64", ("main",))]

    def default_partition(self):
        return "main"

    def jobs(self):
        return []


class FakeRecords:
    def find(self, _user, _signature):
        return ProfileLookup(Profile(100 * MIB, 0), 1)

    def has_changed(self, _since):
        return False

    def write(self, records):
        pass

    def open(self):
        raise OperatingError("database: away")


@pytest.fixture
def place(tmp_path):
    (tmp_path / "salus.conf").write_text(BASE)
    return tmp_path


def make(place):
    path = place / "salus.conf"
    return AdmissionServer(load_or_raise(path), FakeSlurm(), FakeRecords(), path)


def submit(uid=5, signature="job:ab"):
    job = {"tres_per_node": "gres:salus:1"}
    fields = {"uid": uid, "batch": True, "job": job, "options": {"SALUS_SIGNATURE": signature}}
    return Request("submit", fields)


async def wait_nodes_known(service):
    """Wait until the service has read Slurm's nodes."""
    task = asyncio.create_task(service.refresh_forever())
    while service.answers.release == (0, 0):
        await asyncio.sleep(0)
    task.cancel()


def shards(answer):
    return answer["set"]["tres_per_node"].rpartition(":")[2]


def test_a_reload_applies_new_values_to_the_next_answer_and_keeps_slurms_state(place):
    async def scenario():
        service = make(place)
        await wait_nodes_known(service)
        before = await service._answer_submit(submit())
        (place / "salus.conf").write_text(
            BASE.replace("SubmitRate=3", "SubmitRate=100") + "Headroom=100%\nProfileCache=0\n"
        )
        service.reload()
        after = await service._answer_submit(submit())
        answers = [await service._answer_submit(submit(uid=9)) for _ in range(20)]
        return shards(before), shards(after), answers, service

    before, after, answers, service = asyncio.run(scenario())
    assert (before, after) == ("7", "13")
    assert all(answer["ok"] for answer in answers)
    assert service.answers.catalog.default_partition == "main"
    assert service.profiles.fresh_s == 0
    assert service.answers.is_recheck_wanted


@pytest.mark.parametrize("broken", ["Headrom=100%", "LaneReserve=much", "ClusterName=", "SlurmAccess=pyslurm"])
def test_a_reload_with_any_fault_changes_nothing(place, broken):
    async def scenario():
        service = make(place)
        await wait_nodes_known(service)
        old = service.config
        (place / "salus.conf").write_text(BASE + "Headroom=100%\n" + broken + "\n")
        with pytest.raises(admitd.SalusError):
            service.reload()
        service.reload_by_signal()
        assert service.config is service.answers.config is old
        return shards(await service._answer_submit(submit()))

    assert asyncio.run(scenario()) == "7"


def test_keys_that_need_a_restart_are_reported(place):
    service = make(place)
    (place / "salus.conf").write_text(BASE.replace("AdmissionPort=0", "AdmissionPort=7001") + "SubmitRate=5\n")
    with pytest.raises(RequestError, match="SubmitRate"):
        service.reload()
    (place / "salus.conf").write_text(BASE.replace("AdmissionPort=0", "AdmissionPort=7001"))
    old = service.config.settings
    service.reload()
    assert admitd.restart_keys(old, service.config.settings) == {"AdmissionPort"}


def test_a_user_over_the_submit_rate_is_refused_and_others_are_not(place):
    async def scenario():
        service = make(place)
        await wait_nodes_known(service)
        greedy = [await service._answer_submit(submit(uid=5)) for _ in range(8)]
        other = await service._answer_submit(submit(uid=9))
        root = [await service._answer_submit(submit(uid=0)) for _ in range(8)]
        return greedy, other, root

    greedy, other, root = asyncio.run(scenario())
    assert [answer["ok"] for answer in greedy[:3]] == [True] * 3
    assert (greedy[-1].ok, "more than 3 per second" in greedy[-1].why) == (False, True)
    assert other["ok"]
    assert all(answer["ok"] for answer in root)


@pytest.mark.parametrize("verb", ["ping", "status", "why", "profiles", "report", "nonsense"])
def test_every_query_counts_against_its_users_limit(place, monkeypatch, verb):
    async def known_user(_request, _ttl_s):
        return 5

    monkeypatch.setattr(admitd, "verify", known_user)

    async def scenario():
        service = make(place)
        line = b'{"verb": "%s"}' % verb.encode()
        return [await service._answer(line, service._answer_query) for _ in range(5)]

    answers = [msgspec.to_builtins(answer) for answer in asyncio.run(scenario())]
    assert "too many requests" in answers[-1]["why"]
    assert "too many requests" not in answers[0].get("why", "")


def test_connections_are_bounded_before_a_credential_is_checked(place, monkeypatch):
    monkeypatch.setattr(admitd, "CONNECTIONS_MAX", 3)

    async def scenario():
        service = make(place)
        server = await asyncio.start_server(service.serve_tcp, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        peers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        # The fourth is closed at once; the first three are served.
        assert await asyncio.wait_for(peers[3][0].read(), 10) == b""
        peers[0][1].write(b"{}\n")
        assert b"credential" in await asyncio.wait_for(peers[0][0].readline(), 10)
        for _, writer in peers:
            writer.close()
        server.close()
        for task in list(service._connections):
            task.cancel()
        await asyncio.gather(*service._connections, return_exceptions=True)

    asyncio.run(scenario())
