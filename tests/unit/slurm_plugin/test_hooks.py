"""Prolog and Epilog as Slurm runs them: idempotent, bounded, silent for jobs that are not ours, always exit 0."""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

HOOKS = Path(__file__).parents[3] / "slurm_plugin" / "hooks"
SQUEUE = """#!/bin/sh
printf '%-64s%-64s%-16s%s\\n' acct normal 2 "$SEGMENT"
"""


class FakeDaemon(threading.Thread):
    """Answers each packet with `answer` and keeps the requests."""

    def __init__(self, path, answer):
        super().__init__(daemon=True)
        self.requests, self.answer = [], answer
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(path))
        self.listener.listen()

    def run(self):
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            with peer:
                self.requests.append(json.loads(peer.recv(65536)))
                peer.send(self.answer)

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.join()


@pytest.fixture
def place(tmp_path):
    (tmp_path / "squeue").write_text(SQUEUE)
    (tmp_path / "squeue").chmod(0o755)
    return tmp_path


def run(place, hook, segment="salus:1;adm=x;P=7", **environment):
    variables = {
        "PATH": f"{place}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_UID": "5", "SLURM_JOB_USER": "games",
        "SLURM_JOB_GPUS": "1", "SEGMENT": segment, **environment,
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-I", "-S", HOOKS / f"{hook}.py", "--socket", place / "s", "--connect", "0.1", "--wait", "5"],
        env=variables, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


def test_a_job_is_announced_gets_its_file_and_is_released(place):
    daemon = FakeDaemon(place / "s", b'{"ok": true}')
    daemon.start()
    assert run(place, "prolog").returncode == 0
    marker = place / "jobs" / "7"
    assert json.loads(marker.read_text()) == daemon.requests[0]
    assert daemon.requests[0] | {"wait_ms": 0} == {
        "verb": "job_start", "job": "7", "uid": 5, "user": "games", "gpus": "1", "restart": 2, "partition": "",
        "account": "acct", "qos": "normal", "segment": "salus:1;adm=x;P=7", "wait_ms": 0,
    }  # fmt: skip
    assert run(place, "prolog").returncode == 0
    assert run(place, "epilog").returncode == 0
    assert run(place, "epilog").returncode == 0
    daemon.close()
    assert not marker.exists()
    assert [request["verb"] for request in daemon.requests] == ["job_start", "job_start", "job_end"]


def test_a_daemon_that_is_down_or_refuses_or_answers_nonsense_never_fails_a_prolog(place):
    down = run(place, "prolog")
    assert (down.returncode, (place / "jobs" / "7").exists()) == (0, True)
    assert "salusd at" in down.stderr
    for answer in (b'{"ok": false, "why": "no room"}', b"nonsense", b"[]"):
        (place / "s").unlink(missing_ok=True)
        daemon = FakeDaemon(place / "s", answer)
        daemon.start()
        assert run(place, "prolog").returncode == 0
        assert run(place, "epilog").returncode == 0
        daemon.close()


@pytest.mark.parametrize("hook", ["prolog", "epilog"])
def test_jobs_that_are_not_ours_leave_no_trace(place, hook):
    for segment, gpus in (("", "0"), ("nothing of ours", "0"), ("salus:1;adm=x", "")):
        assert run(place, hook, segment=segment, SLURM_JOB_GPUS=gpus).returncode == 0
    assert not (place / "jobs").exists()


def test_a_user_name_cannot_pass_for_a_segment(place):
    ended = run(place, "prolog", segment="", SLURM_JOB_USER="salus:1;P=1")
    assert ended.returncode == 0
    assert not (place / "jobs").exists()


def test_without_an_answer_from_slurm_the_job_is_announced_without_a_segment(place):
    (place / "squeue").write_text("#!/bin/sh\nexit 1\n")
    assert run(place, "prolog").returncode == 0
    assert json.loads((place / "jobs" / "7").read_text())["segment"] == ""


def test_nothing_in_the_environment_can_make_a_hook_fail(place):
    for hook in ("prolog", "epilog"):
        assert run(place, hook, SLURM_JOB_ID="../../etc", SLURM_JOB_UID="x").returncode == 0
        assert run(place, hook, SLURM_JOB_UID="x", SLURM_RESTART_COUNT="y").returncode == 0
