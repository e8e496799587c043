"""A process is identified by pid and start time, so a reused pid is another process."""

import mmap
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from nodedaemon.core.errors import PeerError
from nodedaemon.drivers.host import anonymous_bytes
from nodedaemon.drivers.process import (
    Process,
    ProcessState,
    file_identity,
    find_holders,
    is_alive,
    peer_credentials,
    read_stat,
)
from tests.support.salusd import wait_until


def fake_stat(proc, pid, state, start, name="python (odd) name"):
    (proc / str(pid)).mkdir(exist_ok=True)
    fields = [state, "1", *["0"] * 17, str(start), "0", "0"]
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")


def test_a_name_with_parentheses_and_spaces_does_not_shift_the_fields(tmp_path):
    fake_stat(tmp_path, 7, "R", 4711)
    stat = read_stat(7, tmp_path)
    assert (stat.state, stat.parent_pid, stat.start_ticks) == ("R", 1, 4711)


def test_a_reused_pid_is_detected_by_its_start_time(tmp_path):
    fake_stat(tmp_path, os.getpid(), "S", 100)
    process = Process.of_pid(os.getpid(), proc=tmp_path)
    try:
        assert process.state() is ProcessState.RUNNING
        fake_stat(tmp_path, os.getpid(), "T", 100)
        assert process.state() is ProcessState.STOPPED
        fake_stat(tmp_path, os.getpid(), "S", 101)
        assert not is_alive(os.getpid(), 100, tmp_path)
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


def test_peer_credentials_come_from_the_kernel():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert peer_credentials(ours).pid == os.getpid()
        assert peer_credentials(ours).uid == os.getuid()
        process = Process.of_peer(ours)
        assert process.start_ticks == read_stat(os.getpid()).start_ticks
        process.close()


#: The main thread ends, and another one keeps 16 MiB and the descriptor 0 until a byte arrives on descriptor 1. With
#: `private`, the main thread lives, but only the other one has the descriptor.
WITHOUT_MAIN_THREAD = """
import ctypes, os, sys, threading
SYS_exit = {'x86_64': 60}.get(os.uname().machine, 93)
kept = bytearray(os.urandom(4096) * 4096)
ready = threading.Event()
def stay():
    if "private" in sys.argv:
        assert ctypes.CDLL(None).unshare(0x400) == 0
    ready.set()
    os.read(1, 1)
threading.Thread(target=stay).start()
ready.wait()
if "private" in sys.argv:
    os.close(0)
    ctypes.CDLL(None).sleep(60)
ctypes.CDLL(None).syscall(SYS_exit)
"""


@pytest.fixture
def memfd():
    fd = os.memfd_create("salus-test")
    os.ftruncate(fd, mmap.PAGESIZE)
    yield fd
    os.close(fd)


@pytest.fixture
def start_threads(memfd):
    """A function that starts the program above with the memfd as its descriptor 0."""
    children = []

    def start(*arguments):
        ours, theirs = socket.socketpair()
        with theirs:
            program = [sys.executable, "-c", WITHOUT_MAIN_THREAD, *arguments]
            children.append((subprocess.Popen(program, stdin=memfd, stdout=theirs.fileno()), ours))
        return children[-1]

    yield start
    for child, ours in children:
        child.kill()
        child.wait()
        ours.close()


@pytest.fixture
def headless(start_threads):
    """A process whose main thread has ended, and the socket that ends the other."""
    child, ours = start_threads()
    wait_until(lambda: read_stat(child.pid).state == "Z", "the main thread ends")
    return child, ours


def test_a_process_lives_until_its_last_thread_ends(headless, memfd):
    child, ours = headless
    process = Process.of_pid(child.pid)
    try:
        assert process.state() is ProcessState.RUNNING
        assert is_alive(child.pid, process.start_ticks)
        assert anonymous_bytes(child.pid) > 16 << 20
        assert child.pid in find_holders(file_identity(os.fstat(memfd)), [child.pid])
        child.send_signal(signal.SIGSTOP)
        wait_until(lambda: process.state() is ProcessState.STOPPED, "every thread is stopped")
        child.send_signal(signal.SIGCONT)
        wait_until(lambda: process.state() is ProcessState.RUNNING, "it continues")
        ours.send(b".")
        wait_until(lambda: process.state() is ProcessState.GONE, "its last thread ends")
        assert not is_alive(child.pid, process.start_ticks)
    finally:
        process.close()


def test_a_descriptor_in_the_table_of_one_thread_is_found(start_threads, memfd):
    child, _ = start_threads("private")
    wait_until(lambda: not Path(f"/proc/{child.pid}/fd/0").exists(), "the main thread closes its descriptor")
    identity = file_identity(os.fstat(memfd))
    assert find_holders(identity, [child.pid]) == {child.pid}
    assert {child.pid, os.getpid()} <= find_holders(identity)


def test_the_name_of_a_mapped_file_neither_hides_nor_forges_a_holder(tmp_path, memfd):
    identity = file_identity(os.fstat(memfd))
    device, inode = map(int, identity.split(":"))
    name = b"\xff\r1-2 rw-s 0 00:%02x %d memfd:" % (os.minor(device), inode)
    path = os.fsencode(tmp_path) + b"/" + name
    Path(os.fsdecode(path)).write_bytes(b"x")
    program = (
        "import mmap, os, sys\n"
        "with open(os.fsencode(sys.argv[1]), 'rb') as file: maps = [mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)]\n"
        "maps += [mmap.mmap(int(fd), 4096) for fd in sys.argv[2:]]\n"
        "print(flush=True)\n"
        "sys.stdin.read()\n"
    )
    for descriptors in ([], [memfd]):
        command = [sys.executable, "-c", program, path, *map(str, descriptors)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=descriptors) as child:
            assert child.stdout.readline() == b"\n"
            assert name[:2] in Path(f"/proc/{child.pid}/maps").read_bytes()
            assert find_holders(identity, [child.pid]) == ({child.pid} if descriptors else set())
