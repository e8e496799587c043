"""The server of salus-admitd: a reload is complete or changes nothing, and requests are limited."""

import asyncio
import contextlib
import time

import msgspec
import pytest

from nodedaemon.config import load_or_raise
from nodedaemon.core.errors import OperatingError, RequestError
from nodedaemon.core.types import MIB, Profile
from nodedaemon.wire.envelope import NotPermittedError, Request
from nodedaemon.wire.rate import UserRate
from slurm_plugin.admitd import question_port
from slurm_plugin.admitd import server as admitd
from slurm_plugin.admitd.database import ProfileLookup
from slurm_plugin.admitd.queue_listing import QueueListing
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
    def enforcement(self):
        return frozenset()

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
        assert not task.done(), task
        await asyncio.sleep(0)
    task.cancel()


def shards(answer):
    return answer["set"]["tres_per_node"].rpartition(":")[2]


def test_a_reload_applies_new_values_to_the_next_answer_and_keeps_slurms_state(place):
    async def scenario():
        service = make(place)
        await wait_nodes_known(service)
        before = await service.answer_submit(submit())
        (place / "salus.conf").write_text(
            BASE.replace("SubmitRate=3", "SubmitRate=100") + "Headroom=100%\nProfileCache=0\n"
        )
        service.reload()
        after = await service.answer_submit(submit())
        answers = [await service.answer_submit(submit(uid=9)) for _ in range(20)]
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
        return shards(await service.answer_submit(submit()))

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
        greedy = [await service.answer_submit(submit(uid=5)) for _ in range(8)]
        other = await service.answer_submit(submit(uid=9))
        root = [await service.answer_submit(submit(uid=0)) for _ in range(8)]
        return greedy, other, root

    greedy, other, root = asyncio.run(scenario())
    assert [answer["ok"] for answer in greedy[:3]] == [True] * 3
    assert (greedy[-1].ok, "more than 3 per second" in greedy[-1].why) == (False, True)
    assert other["ok"]
    assert all(answer["ok"] for answer in root)


@pytest.fixture
def known_user(monkeypatch):
    def verify(credential, _message, _slurm_user, _ttl_s):
        assert credential == b"MUNGE:AAAA:"
        return 5

    monkeypatch.setattr(admitd, "verify", verify)


async def listening(service):
    """Serve questions on a free port."""
    await service.question_port.listen("127.0.0.1", 0)
    return service.question_port._server.sockets[0].getsockname()[1]


async def ask(port, request):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"MUNGE:AAAA: " + request + b"\n")
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return msgspec.json.decode(answer)


@pytest.mark.parametrize("verb", ["ping", "status", "why", "profiles", "report", "nonsense"])
def test_every_query_counts_against_its_users_limit(place, known_user, verb):
    async def scenario():
        service = make(place)
        # Time stands still, so that a slow answer does not earn another request.
        service.rate = UserRate(clock=lambda: 0.0)
        port = await listening(service)
        # One after the other, because each user has few requests at a time.
        answers = [await ask(port, b'{"verb": "ping"}'), await ask(port, b'{"verb": "%s"}' % verb.encode())]
        answers += [await ask(port, b'{"verb": "%s"}' % verb.encode()) for _ in range(2)]
        await service.question_port.close()
        await service.reports.close()
        return answers

    answers = asyncio.run(scenario())
    assert answers[0]["ok"]
    assert any("too many requests" in answer.get("why", "") for answer in answers[2:])


def test_a_new_connection_displaces_an_unverified_one_of_the_host_that_has_the_most(monkeypatch):
    monkeypatch.setattr(question_port, "CONNECTIONS_MAX", 4)

    async def scenario():
        tasks = [asyncio.create_task(asyncio.Event().wait()) for _ in range(7)]
        peers = question_port.Peers()
        for task, host in zip(tasks, ["good", "bad", "bad", "bad", "bad"], strict=False):
            assert peers.add(task, host)
        peers.verify(tasks[0])
        displaced = [bool(task.cancelling()) for task in tasks]
        for task in peers.tasks:
            peers.verify(task)
        is_full = not peers.add(tasks[5], "other")
        peers.remove(tasks[0])
        is_free = peers.add(tasks[6], "other")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return displaced, is_full, is_free

    assert asyncio.run(scenario()) == ([False, True, False, False, False, False, False], True, True)


def test_nothing_is_parsed_before_the_credential_is_checked(place, monkeypatch):
    def refuse(*_):
        raise NotPermittedError("credential: refused")

    def parse(_message):
        raise AssertionError("parsed")

    monkeypatch.setattr(admitd, "verify", refuse)
    monkeypatch.setattr(question_port, "read_request", parse)

    async def scenario():
        service = make(place)
        answer = await ask(await listening(service), b'{"verb": "ping"}')
        await service.question_port.close()
        return answer

    assert asyncio.run(scenario())["kind"] == "not_permitted"


def test_a_client_that_does_not_read_its_answer_loses_it(place, known_user, monkeypatch):
    monkeypatch.setattr(question_port, "SEND_TIMEOUT_S", 0.1)

    async def large_answer(*_):
        return bytes(32 << 20)

    async def wait_served(port):
        while port._peers.tasks:
            await asyncio.sleep(0.01)

    async def scenario():
        service = make(place)
        service.reports.answer = large_answer
        reader, writer = await asyncio.open_connection("127.0.0.1", await listening(service), limit=1)
        writer.write(b'MUNGE:AAAA: {"verb": "report"}\n')
        await reader.read(1)
        await asyncio.wait_for(wait_served(service.question_port), 10)
        received_bytes = 0
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(1 << 20):
                received_bytes += len(chunk)
        writer.close()
        await service.question_port.close()
        return received_bytes, dict(service.question_port._request_counts)

    received_bytes, counts = asyncio.run(scenario())
    assert received_bytes < 32 << 20
    assert counts == {}


def test_questions_about_the_queue_share_one_reading_that_is_not_older_than_they_are():
    readings = []

    def read():
        readings.append(len(readings))
        return readings[-1:]

    async def scenario():
        queue = QueueListing(read, interval_s=0.05)
        first = await asyncio.gather(*(queue.jobs() for _ in range(10)))
        started_s = time.monotonic()
        second = await asyncio.gather(*(queue.jobs() for _ in range(10)))
        return first, second, time.monotonic() - started_s

    first, second, waited_s = asyncio.run(scenario())
    assert first == [[0]] * 10
    assert second == [[1]] * 10
    assert waited_s > 0.02


def test_a_failed_reading_of_the_queue_fails_those_who_wait_and_the_next_one_is_new():
    answers = [OperatingError("Slurm: away"), []]

    def read():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def scenario():
        queue = QueueListing(read, interval_s=0.0)
        failed = await asyncio.gather(queue.jobs(), queue.jobs(), return_exceptions=True)
        return [str(error) for error in failed], await queue.jobs()

    assert asyncio.run(scenario()) == (["Slurm: away"] * 2, [])
