"""What Prolog and Epilog left on disk while the daemon was away becomes a start or an end."""

import asyncio
import json
import os
import time
from types import SimpleNamespace

import pytest

from nodedaemon.core.errors import OperatingError
from nodedaemon.drivers.slurm import StartWord
from nodedaemon.service.jobs.prolog_files import ENDED_KEPT_S, Markers
from nodedaemon.service.jobs.registry import JobStart, TaskRequest


class Book:
    """Jobs as the daemon would know them."""

    def __init__(self):
        self.jobs, self.started, self.ended = {}, [], []
        self.word = None
        self.ask_count = self.silent_count = 0

    def add(self, job, *, restart=0, is_local=False):
        self.jobs[job] = SimpleNamespace(restart_count=restart, is_local=is_local, is_ended=False)

    async def start(self, request):
        self.started.append((request.job, request.restart))
        self.add(request.job, restart=request.restart)

    async def ask(self, _job):
        self.ask_count += 1
        word = self.word if self.ask_count > self.silent_count else OperatingError("Slurm: squeue: no answer")
        if isinstance(word, Exception):
            raise word
        return word

    async def end(self, request):
        self.ended.append(request.job)
        self.jobs.pop(request.job, None)


@pytest.fixture
def book():
    return Book()


@pytest.fixture
def markers(tmp_path, book):
    log = SimpleNamespace(info=lambda *_, **__: None, warning=lambda *_, **__: None)
    folder = tmp_path / "jobs"
    return Markers(lambda: folder, lambda: book.jobs, start=book.start, end=book.end, ask=book.ask, log=log)


def leave(tmp_path, job, **fields):
    (tmp_path / "jobs").mkdir(exist_ok=True)
    (tmp_path / "jobs" / job).write_text(json.dumps({"verb": "job_start", "job": job, "uid": 5, **fields}))


def look(markers, times=1):
    async def scenario():
        for _ in range(times):
            await markers.reconcile()

    asyncio.run(scenario())


def test_a_start_that_was_missed_is_taken_up_once(tmp_path, book, markers):
    leave(tmp_path, "7")
    look(markers, times=3)
    assert (book.started, book.ended) == ([("7", 0)], [])


def test_an_end_that_was_missed_is_taken_at_the_second_look(tmp_path, book, markers):
    leave(tmp_path, "8")
    book.add("7")
    look(markers)
    assert book.ended == []
    look(markers)
    assert book.ended == ["7"]


def test_a_requeued_job_is_started_again(tmp_path, book, markers):
    book.add("7")
    leave(tmp_path, "7", restart=1)
    look(markers)
    assert book.started == [("7", 1)]


def test_local_jobs_and_nodes_without_hooks_are_left_alone(tmp_path, book, markers):
    book.add("7")
    look(markers, times=3)
    (tmp_path / "jobs").mkdir()
    book.jobs.clear()
    book.add("L1", is_local=True)
    look(markers, times=3)
    assert (book.started, book.ended) == ([], [])


def test_a_file_that_cannot_be_read_starts_nothing_and_ends_nothing(tmp_path, book, markers):
    leave(tmp_path, "7")
    (tmp_path / "jobs" / "7").write_text("{half")
    (tmp_path / "jobs" / "7.new").write_text("{}")
    look(markers, times=3)
    book.add("7")
    look(markers, times=3)
    assert (book.started, book.ended) == ([], [])


def test_a_task_without_a_prolog_starts_its_job_by_slurms_word_and_leaves_a_file(tmp_path, book, markers):
    ended = tmp_path / "ended" / "7"
    ended.parent.mkdir()
    ended.touch()
    book.word = StartWord(2, "physics", "normal", "main", "salus:1;P=5;E=6")
    asyncio.run(markers.announce(TaskRequest(job="7", uid=5, cuda="1")))
    assert book.started == [("7", 2)]
    left = json.loads((tmp_path / "jobs" / "7").read_text())
    assert (left["gpus"], left["account"], left["segment"]) == ("1", "physics", "salus:1;P=5;E=6")
    assert not ended.exists()
    # With its file it is a job like others: it is not ended at the next looks, nor started again.
    look(markers, times=3)
    assert (book.started, book.ended) == ([("7", 2)], [])


@pytest.mark.parametrize("word", [None, OperatingError("Slurm: squeue: no answer")])
def test_a_task_of_which_slurm_says_nothing_starts_no_job(tmp_path, book, markers, word):
    book.word = word
    asyncio.run(markers.announce(TaskRequest(job="7", uid=5)))
    assert (book.started, (tmp_path / "jobs" / "7").exists()) == ([], False)


def test_a_task_whose_prolog_left_a_file_waits_for_no_slurm(tmp_path, book, markers):
    """salusd was away when the Prolog asked, and is asked by the task before it has looked at the files."""
    leave(tmp_path, "7", restart=1)
    book.word = OperatingError("Slurm: squeue: no answer")
    asyncio.run(markers.announce(TaskRequest(job="7", uid=5)))
    assert book.started == [("7", 1)]


def test_a_prolog_without_slurms_answer_is_completed_once_slurm_answers(book, markers, monkeypatch):
    monkeypatch.setattr("nodedaemon.service.jobs.prolog_files.ASK_AGAIN_S", 0.001)
    book.word, book.silent_count = StartWord(1, "physics", "long", "main", "salus:1;P=5;E=6"), 2
    told = asyncio.run(markers.complete(JobStart(job="7", uid=5, user="ada", gpus="0", wait_ms=55), 30.0))
    assert told == JobStart("7", 5, "ada", "0", 1, "main", "physics", "long", "salus:1;P=5;E=6", wait_ms=55)
    assert book.ask_count == 3


@pytest.mark.parametrize("word", [None, OperatingError("Slurm: squeue: no answer")])
def test_a_prolog_of_which_slurm_says_nothing_more_stays_as_it_is(book, markers, word):
    book.word = word
    request = JobStart(job="7", uid=5, gpus="0")
    assert asyncio.run(markers.complete(request, 0.0)) == request
    assert book.ask_count == 1


def test_ended_jobs_are_forgotten_when_no_slurmd_remembers_them(tmp_path, markers):
    leave(tmp_path, "8")
    (tmp_path / "ended").mkdir()
    old, young = tmp_path / "ended" / "1", tmp_path / "ended" / "2"
    old.touch(), young.touch()
    then = time.time() - ENDED_KEPT_S - 1
    os.utime(old, (then, then))
    look(markers)
    assert (old.exists(), young.exists()) == (False, True)
