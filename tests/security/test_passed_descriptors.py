"""Descriptors that another user passes to a daemon: closing them may take as long as the user likes.

Each attack passes TCP sockets with SO_LINGER whose peer does not read. The close of the last descriptor of such a
socket waits for `LINGER_S`, in the process that closes it.
"""

import contextlib
import pwd
import signal
import socket
import time
from pathlib import Path

import pytest

from nodedaemon.wire import framing
from nodedaemon.wire.messages import Hello, HelloFlag
from tests.support.admitd import SLURM_USER, Admitd
from tests.support.attacker import ATTACKER, ATTACKERS, start_attack
from tests.support.salusd import Salusd, wait_until

#: Much longer than a busy machine needs for a few requests.
LINGER_S = 60
BOUND_S = 20.0

LINGERING = """
import _thread, os, socket, struct, sys, time
path, kind, linger_s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
is_daemon_stopped = sys.argv[4] == "True"
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
server.listen()
unread = []

def lingering():
    client = socket.socket()
    client.connect(server.getsockname())
    unread.append(server.accept()[0])
    client.setblocking(False)
    try:
        while True:
            client.send(bytes(65536))
    except BlockingIOError:
        pass
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, linger_s))
    return client.detach()

def nested():
    # A socket whose queue holds a message with a lingering socket.
    inner, outer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pass_on(inner, b"x", [lingering()])
    inner.close()
    return outer.detach()

def pass_on(peer, packet, descriptors):
    rights = struct.pack(f"{len(descriptors)}i", *descriptors)
    peer.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    # Without a stopped daemon, ours may be the last descriptor, and its close lingers.
    for descriptor in descriptors:
        os.close(descriptor) if is_daemon_stopped else _thread.start_new_thread(os.close, (descriptor,))

def connect():
    while True:
        peer = socket.socket(socket.AF_UNIX, kind)
        peer.settimeout(30)
        try:
            peer.connect(path)
            return peer
        except BlockingIOError:  # too many wait to be accepted
            time.sleep(0.01)

def finish():
    print("done", flush=True)
    sys.stdin.read()
"""

ATTACKS = {
    "a request": """
peer = connect()
pass_on(peer, b'{"verb": "ping"}\\n', [lingering()])
""",
    "garbage": """
peer = connect()
pass_on(peer, b"garbage", [lingering()])
""",
    "more descriptors than any frame has": """
peer = connect()
pass_on(peer, b"garbage", [lingering() for _ in range(20)])
""",
    "nested in a socket": """
peer = connect()
pass_on(peer, b"garbage", [nested(), nested()])
""",
    "behind empty messages": """
passed = [lingering() for _ in range(20)]
for descriptor in passed:
    peer = connect()
    try:
        peer.send(b"")
        peer.send(b"")
        pass_on(peer, b"" if kind == socket.SOCK_SEQPACKET else b"x", [descriptor])
    except ConnectionError:
        pass
""",
    "never read": """
peers = [connect() for _ in range(10)]
for peer in peers:
    try:
        peer.send(b"garbage\\n")
        pass_on(peer, b"more", [lingering()])
        pass_on(peer, b"more", [lingering()])
    except OSError:
        pass
    peer.close()
""",
}


def ask_often(daemon):
    """The longest of several answer times while the daemon handles the attack."""
    longest_s = 0.0
    for _ in range(5):
        started_s = time.monotonic()
        assert daemon.ask("ping")["ok"]
        if isinstance(daemon, Salusd):
            assert daemon.hook("task_exit", job="1", uid=0)["ok"]
        longest_s = max(longest_s, time.monotonic() - started_s)
    return longest_s


def socket_count(daemon):
    """The number of sockets. Files do not count: the daemon and its database open them when they need them."""
    count = 0
    for descriptor in Path(f"/proc/{daemon.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += descriptor.readlink().name.startswith("socket:")
    return count


def strike(daemon, path, kind, program, *, is_daemon_stopped=True, uid=ATTACKER):
    """Run the attack, and query the daemon while the attacker's sockets linger. Their peers stay open until then.

    The daemon is stopped until everything is sent, so that it holds the last descriptor of every socket.
    """
    arguments = (path, int(kind), LINGER_S, is_daemon_stopped)
    if is_daemon_stopped:
        daemon.process.send_signal(signal.SIGSTOP)
    with start_attack(LINGERING + program + "\nfinish()\n", *arguments, uid=uid) as attacker:
        try:
            assert attacker.stdout.readline() == "done\n", attacker.stderr.read()
            daemon.process.send_signal(signal.SIGCONT)
            assert ask_often(daemon) < BOUND_S
        finally:
            daemon.process.send_signal(signal.SIGCONT)
            attacker.kill()


@pytest.fixture(scope="module")
def shared_daemon():
    with Salusd() as daemon:
        yield daemon


@pytest.mark.parametrize("attack_name", ATTACKS)
@pytest.mark.parametrize("kind", [socket.SOCK_SEQPACKET, socket.SOCK_STREAM], ids=["sessions", "control"])
def test_sockets_that_linger_do_not_delay_the_daemon(kind, attack_name, shared_daemon):
    daemon = shared_daemon
    before = socket_count(daemon)
    strike(daemon, daemon.socket if kind == socket.SOCK_SEQPACKET else daemon.control, kind, ATTACKS[attack_name])
    wait_until(lambda: socket_count(daemon) <= before, "every socket is closed", daemon.log_tail)


@pytest.fixture(scope="module")
def shared_admitd():
    with Admitd() as admitd:
        yield admitd


@pytest.mark.parametrize("attack_name", ATTACKS)
def test_sockets_that_linger_do_not_delay_submissions(attack_name, shared_admitd):
    # Nobody else can connect. A process of SlurmUser may have been taken over.
    before = socket_count(shared_admitd)
    uid = pwd.getpwnam(SLURM_USER).pw_uid
    strike(shared_admitd, shared_admitd.socket, socket.SOCK_STREAM, ATTACKS[attack_name], uid=uid)
    wait_until(lambda: socket_count(shared_admitd) <= before, "every socket is closed", shared_admitd.log_tail)


@pytest.mark.parametrize(
    ("uid", "passed"),
    [
        (ATTACKERS[0], "[lingering()]"),
        (ATTACKERS[1], "[lingering() for _ in range(20)]"),
        (ATTACKERS[2], "[os.memfd_create('x'), os.memfd_create('x'), lingering()]"),
    ],
)
def test_the_only_frame_that_may_carry_descriptors_cannot_carry_sockets(uid, passed, salusd):
    daemon = salusd()
    before = socket_count(daemon)
    resume = framing.encode(Hello(session=1, flags=HelloFlag.RESUME))
    program = f"peer = connect()\npass_on(peer, {resume!r}, {passed})\n"
    strike(daemon, daemon.socket, socket.SOCK_SEQPACKET, program, uid=uid)
    wait_until(lambda: "not memory of a session" in daemon.log.read_text(), "they are refused", daemon.log_tail)
    # A thread closes these. The attacker decides how long that takes; meanwhile no more are accepted from that user.
    wait_until(lambda: socket_count(daemon) <= before, "every socket is closed", daemon.log_tail)


def test_a_daemon_stops_in_time_while_unread_sockets_linger(salusd):
    daemon = salusd()
    program = """
peers = [connect() for _ in range(20)]
for peer in peers:
    pass_on(peer, b"garbage", [lingering()])
finish()
"""
    with start_attack(LINGERING + program, daemon.socket, int(socket.SOCK_SEQPACKET), LINGER_S, False) as attacker:
        try:
            assert attacker.stdout.readline() == "done\n", attacker.stderr.read()
            started_s = time.monotonic()
            assert daemon.stop() == 0
            assert time.monotonic() - started_s < BOUND_S
        finally:
            attacker.kill()


@pytest.mark.redteam
@pytest.mark.timeout(900)
def test_a_thousand_connections_with_sockets_that_linger_leave_nothing_behind(salusd):
    daemon = salusd()
    before, threads = socket_count(daemon), len(list(Path(f"/proc/{daemon.process.pid}/task").iterdir()))
    program = """
for _ in range(1000):
    peer = connect()
    try:
        pass_on(peer, b"garbage", [lingering()])
        pass_on(peer, b"garbage", [nested()])
    except OSError:
        pass
    peer.close()
"""
    for path, kind in ((daemon.socket, socket.SOCK_SEQPACKET), (daemon.control, socket.SOCK_STREAM)):
        strike(daemon, path, kind, program, is_daemon_stopped=False)
    wait_until(lambda: socket_count(daemon) <= before, "every socket is closed", daemon.log_tail)
    wait_until(
        lambda: len(list(Path(f"/proc/{daemon.process.pid}/task").iterdir())) <= threads,
        "no thread is left",
        daemon.log_tail,
    )
