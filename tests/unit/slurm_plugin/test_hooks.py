"""Prolog and Epilog as Slurm runs them: idempotent, bounded, silent for jobs that are not ours, always exit 0."""

import json
import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

HOOKS = Path(__file__).parents[3] / "slurm_plugin" / "hooks"
# The delimiter begins with the last x of --Format: the rest is hexadecimal.
SQUEUE = """#!/bin/sh
d=x${3##*x}
printf '%-64s%s%-64s%s%-16s%s%-512s%s%-2048s%s\\n' "$ACCOUNT" $d normal $d 2 $d "$TRES" $d "$SEGMENT" $d
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


def run(place, hook, segment="salus:1;adm=x;P=7", umask=0o022, **environment):
    variables = {
        "PATH": f"{place}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_UID": "5", "SLURM_JOB_USER": "games",
        "SLURM_JOB_GPUS": "1", "SEGMENT": segment, "ACCOUNT": "acct", "TRES": "gres:salus:1,gres:shard:3",
        **environment,
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-I", "-S", HOOKS / f"{hook}.py", "--socket", place / "s", "--connect", "0.1", "--wait", "5"],
        env=variables, capture_output=True, text=True, timeout=30, check=False, umask=umask,
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


def test_the_file_of_a_job_is_readable_only_by_its_owner_and_its_directory_by_all(place):
    for expected in ("jobs", "ended"):
        run(place, "prolog" if expected == "jobs" else "epilog", umask=0)
        folder = place / expected
        assert stat.S_IMODE(folder.stat().st_mode) == 0o755
        assert stat.S_IMODE((folder / "7").stat().st_mode) == 0o600


@pytest.mark.parametrize("account", ["a\nb", "é" * 20, "x" * 64, "a\x1fb", "\n7 RUNNING\n"])
def test_the_name_of_an_account_cannot_pass_for_other_columns(place, account):
    assert run(place, "prolog", ACCOUNT=account).returncode == 0
    left = json.loads((place / "jobs" / "7").read_text())
    assert (left["account"], left["qos"], left["segment"]) == (account, "normal", "salus:1;adm=x;P=7")


@pytest.mark.parametrize("tres", ["", "(null)", "N/A", "gres:gpu:1", "gres/salusx:1"])
def test_a_job_without_salus_in_its_tres_is_not_announced_whatever_its_comment_says(place, tres):
    assert run(place, "prolog", TRES=tres).returncode == 0
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
