"""The files of the Prolog and the Epilog show the starts and ends that the daemon missed."""

import asyncio
import json
import os
import time
from types import SimpleNamespace

import pytest

from nodedaemon.core.errors import OperatingError
from nodedaemon.service.jobs.missed_hooks import MissedHooks
from nodedaemon.service.jobs.prolog_files import ENDED_KEPT_S, JobStarts, PrologFiles
from nodedaemon.service.jobs.slurm_jobs import SlurmJobs
from nodedaemon.wire.control import JobAtStart, JobStart


class Node:
    """Jobs of a daemon, and a Slurm that answers `answer` after `silent_count` failures."""

    def __init__(self):
        self.jobs, self.started, self.ended = {}, [], []
        self.answer = None
        self.ask_count = self.silent_count = 0

    def add(self, job, *, restart=0, is_local=False):
        self.jobs[job] = SimpleNamespace(restart_count=restart, is_local=is_local, is_ended=False)

    def get(self, job):
        return self.jobs.get(job)

    def commands(self):
        return self

    async def job_start(self, request):
        self.started.append((request.job, request.restart))
        self.add(request.job, restart=request.restart)

    async def start(self, _job):
        self.ask_count += 1
        answer = self.answer if self.ask_count > self.silent_count else OperatingError("Slurm: squeue: no answer")
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def job_end(self, request):
        self.ended.append(request.job)
        self.jobs.pop(request.job, None)


@pytest.fixture
def node():
    return Node()


@pytest.fixture
def files(tmp_path):
    return PrologFiles(SimpleNamespace(run_directory=tmp_path))


@pytest.fixture
def starts(files, node):
    return JobStarts(files, node)


@pytest.fixture
def missed(files, node):
    return MissedHooks(files, node, node)


def leave(tmp_path, job, **fields):
    (tmp_path / "jobs").mkdir(exist_ok=True)
    (tmp_path / "jobs" / job).write_text(json.dumps({"verb": "job_start", "job": job, "uid": 5, **fields}))


def look(missed, times=1):
    async def scenario():
        for _ in range(times):
            await missed.compare()

    asyncio.run(scenario())


def test_a_missed_start_is_handled_once(tmp_path, node, missed):
    leave(tmp_path, "7")
    look(missed, times=3)
    assert (node.started, node.ended) == ([("7", 0)], [])


def test_a_missed_end_is_handled_at_the_second_look(tmp_path, node, missed):
    leave(tmp_path, "8")
    node.add("7")
    look(missed)
    assert node.ended == []
    look(missed)
    assert node.ended == ["7"]


def test_a_requeued_job_is_started_again(tmp_path, node, missed):
    node.add("7")
    leave(tmp_path, "7", restart=1)
    look(missed)
    assert node.started == [("7", 1)]


def test_local_jobs_and_jobs_of_nodes_without_hooks_are_not_ended(tmp_path, node, missed):
    node.add("7")
    look(missed, times=3)
    (tmp_path / "jobs").mkdir()
    node.jobs.clear()
    node.add("L1", is_local=True)
    look(missed, times=3)
    assert (node.started, node.ended) == ([], [])


def test_a_file_that_cannot_be_read_starts_nothing_and_ends_nothing(tmp_path, node, missed):
    leave(tmp_path, "7")
    (tmp_path / "jobs" / "7").write_text("{half")
    (tmp_path / "jobs" / "7.new").write_text("{}")
    look(missed, times=3)
    node.add("7")
    look(missed, times=3)
    assert (node.started, node.ended) == ([], [])


def test_a_task_without_a_prolog_starts_its_job_from_slurms_answer_and_writes_its_file(tmp_path, node, starts, missed):
    ended = tmp_path / "ended" / "7"
    ended.parent.mkdir()
    ended.touch()
    node.answer = JobAtStart(uid=5, restart=2, account="physics", segment="salus:1;P=5;E=6")
    request = asyncio.run(starts.find("7", "1"))
    assert (request.job, request.restart) == ("7", 2)
    left = json.loads((tmp_path / "jobs" / "7").read_text())
    assert (tmp_path / "jobs" / "7").stat().st_mode & 0o777 == 0o600
    assert (left["gpus"], left["account"], left["segment"]) == ("1", "physics", "salus:1;P=5;E=6")
    assert not ended.exists()
    # Now it has a file like any other job: the next looks neither end it nor start it again.
    asyncio.run(node.job_start(request))
    look(missed, times=3)
    assert (node.started, node.ended) == ([("7", 2)], [])


def test_a_job_that_slurm_does_not_confirm_is_not_started(tmp_path, node, starts):
    assert asyncio.run(starts.find("7")) is None
    node.answer = OperatingError("Slurm: squeue: no answer")
    with pytest.raises(OperatingError, match="no answer"):
        asyncio.run(starts.find("7"))
    assert not (tmp_path / "jobs" / "7").exists()


def test_slurm_is_not_asked_about_a_task_whose_prolog_left_a_file(tmp_path, node, starts):
    """salusd was down when the Prolog asked, and the task asks before salusd has read the files."""
    leave(tmp_path, "7", restart=1)
    node.answer = OperatingError("Slurm: squeue: no answer")
    assert asyncio.run(starts.find("7")).restart == 1


def test_a_start_without_a_segment_is_completed_once_slurm_answers(node, starts, monkeypatch):
    monkeypatch.setattr("nodedaemon.service.jobs.prolog_files.RETRY_INTERVAL_S", 0.001)
    answer = {
        "uid": 5,
        "restart": 1,
        "account": "physics",
        "qos": "long",
        "partition": "main",
        "segment": "salus:1;P=5;E=6",
    }
    request = {"job": "7", "user": "ada", "gpus": "0", "wait_ms": 55}
    node.answer, node.silent_count = JobAtStart(**answer), 2
    completed = asyncio.run(starts.complete(JobStart(**request, uid=5), 30.0))
    assert completed == JobStart(**request, **answer)
    assert node.ask_count == 3


@pytest.mark.parametrize("answer", [None, OperatingError("Slurm: squeue: no answer")])
def test_a_start_that_slurm_says_nothing_about_is_not_changed(node, starts, answer):
    node.answer = answer
    request = JobStart(job="7", uid=5, gpus="0")
    assert asyncio.run(starts.complete(request, 0.0)) == request
    assert node.ask_count == 1


def test_the_file_of_an_ended_job_is_removed_when_slurmd_has_forgotten_the_job(tmp_path, missed):
    leave(tmp_path, "8")
    (tmp_path / "ended").mkdir()
    old, young = tmp_path / "ended" / "1", tmp_path / "ended" / "2"
    old.touch(), young.touch()
    then = time.time() - ENDED_KEPT_S - 1
    os.utime(old, (then, then))
    look(missed)
    assert (old.exists(), young.exists()) == (False, True)


def test_a_job_that_is_ended_without_its_epilog_leaves_no_file(tmp_path, node, starts):
    leave(tmp_path, "7")
    shell = SimpleNamespace(configuration=None, devices=None)
    registry = SimpleNamespace(shell=shell, get=lambda _job: None)
    asyncio.run(SlurmJobs(registry, None, starts).end_without_epilog("7"))
    assert not (tmp_path / "jobs" / "7").exists()
