"""The files of Prolog and Epilog show the starts and ends that the daemon missed."""

import asyncio
import json
import os
import time
from types import SimpleNamespace

import pytest

from nodedaemon.core.errors import OperatingError
from nodedaemon.drivers.slurm import JobAtStart
from nodedaemon.service.jobs.missed_hooks import MissedHooks
from nodedaemon.service.jobs.prolog_files import ENDED_KEPT_S, JobStarts, PrologFiles
from nodedaemon.wire.control import JobStart, TaskRequest


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


LOG = SimpleNamespace(info=lambda *_, **__: None, warning=lambda *_, **__: None)


@pytest.fixture
def node():
    return Node()


@pytest.fixture
def files(tmp_path):
    return PrologFiles(SimpleNamespace(run_directory=tmp_path), LOG)


@pytest.fixture
def starts(files, node):
    return JobStarts(files, node, LOG)


@pytest.fixture
def missed(files, node):
    return MissedHooks(files, node, node, LOG)


def leave(tmp_path, job, **fields):
    (tmp_path / "jobs").mkdir(exist_ok=True)
    (tmp_path / "jobs" / job).write_text(json.dumps({"verb": "job_start", "job": job, "uid": 5, **fields}))


def look(missed, times=1):
    async def scenario():
        for _ in range(times):
            await missed.compare()

    asyncio.run(scenario())


def test_a_start_that_was_missed_is_taken_up_once(tmp_path, node, missed):
    leave(tmp_path, "7")
    look(missed, times=3)
    assert (node.started, node.ended) == ([("7", 0)], [])


def test_an_end_that_was_missed_is_taken_at_the_second_look(tmp_path, node, missed):
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


def test_local_jobs_and_nodes_without_hooks_are_left_alone(tmp_path, node, missed):
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


def test_a_task_without_a_prolog_starts_its_job_by_slurms_answer_and_writes_its_file(tmp_path, node, starts, missed):
    ended = tmp_path / "ended" / "7"
    ended.parent.mkdir()
    ended.touch()
    node.answer = JobAtStart(2, "physics", "normal", "main", "salus:1;P=5;E=6")
    request = asyncio.run(starts.find(TaskRequest(job="7", uid=5, cuda="1")))
    assert (request.job, request.restart) == ("7", 2)
    left = json.loads((tmp_path / "jobs" / "7").read_text())
    assert (left["gpus"], left["account"], left["segment"]) == ("1", "physics", "salus:1;P=5;E=6")
    assert not ended.exists()
    # With its file it is a job like others: the next looks neither end it nor start it again.
    asyncio.run(node.job_start(request))
    look(missed, times=3)
    assert (node.started, node.ended) == ([("7", 2)], [])


@pytest.mark.parametrize("answer", [None, OperatingError("Slurm: squeue: no answer")])
def test_a_task_of_which_slurm_says_nothing_starts_no_job(tmp_path, node, starts, answer):
    node.answer = answer
    assert asyncio.run(starts.find(TaskRequest(job="7", uid=5))) is None
    assert not (tmp_path / "jobs" / "7").exists()


def test_a_task_whose_prolog_left_a_file_waits_for_no_slurm(tmp_path, node, starts):
    """salusd was down when the Prolog asked, and the task asks before salusd has read the files."""
    leave(tmp_path, "7", restart=1)
    node.answer = OperatingError("Slurm: squeue: no answer")
    assert asyncio.run(starts.find(TaskRequest(job="7", uid=5))).restart == 1


def test_a_prolog_without_slurms_answer_is_completed_once_slurm_answers(node, starts, monkeypatch):
    monkeypatch.setattr("nodedaemon.service.jobs.prolog_files.RETRY_INTERVAL_S", 0.001)
    node.answer, node.silent_count = JobAtStart(1, "physics", "long", "main", "salus:1;P=5;E=6"), 2
    completed = asyncio.run(starts.complete(JobStart(job="7", uid=5, user="ada", gpus="0", wait_ms=55), 30.0))
    assert completed == JobStart("7", 5, "ada", "0", 1, "main", "physics", "long", "salus:1;P=5;E=6", wait_ms=55)
    assert node.ask_count == 3


@pytest.mark.parametrize("answer", [None, OperatingError("Slurm: squeue: no answer")])
def test_a_prolog_of_which_slurm_says_nothing_more_stays_as_it_is(node, starts, answer):
    node.answer = answer
    request = JobStart(job="7", uid=5, gpus="0")
    assert asyncio.run(starts.complete(request, 0.0)) == request
    assert node.ask_count == 1


def test_ended_jobs_are_forgotten_when_no_slurmd_remembers_them(tmp_path, missed):
    leave(tmp_path, "8")
    (tmp_path / "ended").mkdir()
    old, young = tmp_path / "ended" / "1", tmp_path / "ended" / "2"
    old.touch(), young.touch()
    then = time.time() - ENDED_KEPT_S - 1
    os.utime(old, (then, then))
    look(missed)
    assert (old.exists(), young.exists()) == (False, True)
