"""A job that its Prolog did not announce is added only if it is confirmed, and a refusal costs few questions."""

import asyncio
from types import SimpleNamespace

import pytest

from nodedaemon.core.errors import OperatingError, PeerError
from nodedaemon.drivers.cgroup import JobPlace
from nodedaemon.service.jobs import unannounced_jobs
from nodedaemon.service.jobs.unannounced_jobs import REFUSALS_MAX, UnannouncedJobs

PLACE = JobPlace("7", None, "0")
SILENCE = OperatingError("Slurm: squeue: no answer")


class Node:
    """A registry, and a Slurm that gives `answers` in turn and repeats the last one."""

    def __init__(self, *answers, is_installed=True):
        self.answers, self.jobs, self.ask_count = list(answers), {}, 0
        settings = SimpleNamespace(slurm=SimpleNamespace(prolog_timeout_ns=50_000_000))
        slurm = SimpleNamespace(commands=lambda: SimpleNamespace(is_installed=is_installed))
        self.shell = SimpleNamespace(slurm=slurm, configuration=SimpleNamespace(settings=settings))
        self.unannounced = UnannouncedJobs(self, self)

    def get(self, job):
        return self.jobs.get(job)

    async def find_unannounced(self, job):
        self.ask_count += 1
        answered = asyncio.Event()
        asyncio.get_running_loop().call_soon(answered.set)
        await answered.wait()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        if answer is not None:
            self.jobs[job] = answer
        return answer


@pytest.fixture(autouse=True)
def short_retries(monkeypatch):
    monkeypatch.setattr(unannounced_jobs, "RETRY_INTERVAL_S", 0.001)


def test_a_confirmed_job_is_asked_about_once_for_many_processes():
    facts = SimpleNamespace(uid=5)
    node = Node(facts)

    async def scenario():
        return await asyncio.gather(*(node.unannounced.add(PLACE) for _ in range(20)))

    assert asyncio.run(scenario()) == [facts] * 20
    assert node.ask_count == 1


def test_a_job_that_is_not_ours_is_refused_with_one_question():
    node = Node(None)

    async def scenario():
        return await asyncio.gather(*(node.unannounced.add(PLACE) for _ in range(20)), return_exceptions=True)

    refusals = asyncio.run(scenario())
    assert {type(one) for one in refusals} == {PeerError}
    assert "job 7: Slurm gave it no share of a device" in str(refusals[0])
    assert (node.ask_count, node.jobs) == (1, {})


def test_a_process_waits_for_a_slurmctld_that_is_silent_for_a_while():
    facts = SimpleNamespace(uid=5)
    node = Node(SILENCE, SILENCE, facts)
    assert asyncio.run(node.unannounced.add(PLACE)) is facts
    assert node.ask_count == 3


def test_a_job_that_slurmctld_never_confirms_is_refused_and_gets_nothing():
    node = Node(SILENCE)
    with pytest.raises(PeerError, match="slurmctld does not confirm"):
        asyncio.run(node.unannounced.add(PLACE))
    assert node.ask_count > 1
    assert node.jobs == {}


def test_a_node_without_slurm_refuses_at_once():
    node = Node(SILENCE, is_installed=False)
    with pytest.raises(PeerError):
        asyncio.run(node.unannounced.add(PLACE))
    assert node.ask_count == 1


def test_refusals_are_remembered_for_a_bounded_number_of_jobs():
    node = Node(None)

    async def scenario():
        for number in range(REFUSALS_MAX + 10):
            with pytest.raises(PeerError):
                await node.unannounced.add(JobPlace(str(number), None, None))

    asyncio.run(scenario())
    assert len(node.unannounced._refusals) == REFUSALS_MAX
    assert not node.unannounced._asking
