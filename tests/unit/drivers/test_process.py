"""A process is named by pid and start time; a reused pid is another process."""

import os
import signal
import socket
import subprocess

import pytest

from nodedaemon.core.errors import PeerError
from nodedaemon.drivers.process import Process, ProcessState, peer_credentials, read_stat


def fake_stat(proc, pid, state, start, name="python (odd) name"):
    (proc / str(pid)).mkdir(exist_ok=True)
    fields = [state, "1", *["0"] * 17, str(start), "0", "0"]
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")


def test_a_name_with_brackets_and_spaces_does_not_shift_the_fields(tmp_path):
    fake_stat(tmp_path, 7, "R", 4711)
    stat = read_stat(7, tmp_path)
    assert (stat.state, stat.parent_pid, stat.start_ticks) == ("R", 1, 4711)


def test_pid_reuse_is_seen_by_the_start_time(tmp_path):
    fake_stat(tmp_path, os.getpid(), "S", 100)
    process = Process.of_pid(os.getpid(), proc=tmp_path)
    try:
        assert process.state() is ProcessState.RUNNING
        fake_stat(tmp_path, os.getpid(), "T", 100)
        assert process.state() is ProcessState.STOPPED
        fake_stat(tmp_path, os.getpid(), "S", 101)
        assert process.state() is ProcessState.GONE
        with pytest.raises(PeerError, match="another process"):
            Process.of_pid(os.getpid(), 100, proc=tmp_path)
    finally:
        process.close()


def test_a_child_is_pinned_stopped_and_ended_through_its_pidfd():
    child = subprocess.Popen(["sleep", "60"])
    process = Process.of_pid(child.pid)
    try:
        process.pin({min(os.sched_getaffinity(0))})
        assert os.sched_getaffinity(child.pid) == {min(os.sched_getaffinity(0))}
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        assert process.state() is ProcessState.STOPPED
        process.end()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert process.state() is ProcessState.GONE
        child.wait()
        process.end()
    finally:
        process.close()
        child.kill()
        child.wait()


def test_the_peer_is_who_the_kernel_says():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert peer_credentials(ours).pid == os.getpid()
        assert peer_credentials(ours).uid == os.getuid()
        process = Process.of_peer(ours)
        assert process.start_ticks == read_stat(os.getpid()).start_ticks
        process.close()
