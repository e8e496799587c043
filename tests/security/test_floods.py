"""Floods by another user: connections, HELLOs, log lines and requests. Root and placed jobs are served meanwhile."""

import json
import socket

import pytest

from nodedaemon.wire import framing
from nodedaemon.wire.messages import Fault, Hello
from nodedaemon.wire.rate import CONNECTIONS_BURST_S, CONNECTIONS_PER_S
from tests.support.attacker import ATTACKER, attack, start_attack
from tests.support.salusd import wait_until

SEQPACKET, STREAM = int(socket.SOCK_SEQPACKET), int(socket.SOCK_STREAM)

CONNECT = """
import json, socket, sys, time
path, kind, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def connect():
    while True:
        peer = socket.socket(socket.AF_UNIX, kind)
        peer.settimeout(30)
        try:
            peer.connect(path)
            return peer
        except BlockingIOError:  # too many wait to be accepted
            time.sleep(0.01)

def is_open(peer):
    peer.setblocking(False)
    try:
        return peer.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
"""

HOLD = """
peers = [connect() for _ in range(count)]
print("done", flush=True)
sys.stdin.readline()
print(sum(map(is_open, peers)), flush=True)
"""

#: Sends one packet over each of many connections, one after the other.
SEND_AND_CLOSE = """
packet, is_answered = bytes.fromhex(sys.argv[4]), sys.argv[5] == "True"
for _ in range(count):
    with connect() as peer:
        try:
            peer.send(packet)
            if is_answered:
                peer.recv(65536)
        except ConnectionError:
            pass
"""

REQUESTS = """
with connect() as peer, peer.makefile("r") as answers:
    for line in json.loads(sys.argv[4]):
        peer.sendall(line.encode() + b"\\n")
        print(answers.readline().strip())
"""


def log_lines(daemon, event):
    return [line for line in daemon.log.read_text().splitlines() if f'event="{event}"' in line]


@pytest.mark.parametrize("kind", [SEQPACKET, STREAM], ids=["sessions", "control"])
def test_idle_connections_of_a_user_are_limited_and_root_is_served(kind, salusd):
    daemon = salusd(config="HelloTimeout=5:00\nUserSessions=20")
    path, limit = (daemon.socket, 20 + 16) if kind == SEQPACKET else (daemon.control, 64)
    with start_attack(CONNECT + HOLD, path, kind, 200) as attacker:
        try:
            assert attacker.stdout.readline() == "done\n", attacker.stderr.read()
            assert daemon.ask("ping")["ok"]
            assert daemon.hook("task_exit", job="1", uid=0)["ok"]
            attacker.stdin.write("count\n")
            attacker.stdin.flush()
            assert int(attacker.stdout.readline()) == limit
        finally:
            attacker.kill()


def test_a_command_that_sends_nothing_loses_its_connection(salusd):
    daemon = salusd(config="HelloTimeout=200ms")
    program = CONNECT + "peer = connect()\nprint(peer.recv(1))\n"
    assert attack(program, daemon.control, STREAM, 1) == "b''\n"


@pytest.mark.parametrize("message", [Hello(), Fault(text="x" * 100)], ids=["hello", "fault"])
def test_a_flood_of_short_connections_leaves_few_lines_in_the_log(message, salusd):
    daemon = salusd(config="LocalJobs=no")
    before = len(daemon.log.read_text().splitlines())
    is_answered = isinstance(message, Hello)
    attack(CONNECT + SEND_AND_CLOSE, daemon.socket, SEQPACKET, 100, framing.encode(message).hex(), is_answered)
    # Connections are accepted in order, so the whole flood has been accepted.
    assert daemon.hook("task_exit", job="1", uid=0)["ok"]
    lines = [line for line in daemon.log.read_text().splitlines()[before:] if f"uid={ATTACKER}" in line]
    assert 0 < len(lines) <= 30, lines


def test_a_user_who_connects_too_often_is_refused_and_others_are_not(salusd):
    daemon = salusd(config="LocalJobs=no")
    count = int(CONNECTIONS_PER_S * CONNECTIONS_BURST_S) * 2
    attack(CONNECT + SEND_AND_CLOSE, daemon.control, STREAM, count, b"\n".hex(), True)
    wait_until(lambda: "connects too often" in daemon.log.read_text(), "the user is refused", daemon.log_tail)
    assert daemon.ask("ping")["ok"]
    ping = json.dumps(['{"verb": "ping"}'])
    assert json.loads(attack(CONNECT + REQUESTS, daemon.control, STREAM, 1, ping, uid=ATTACKER + 1))["ok"]


BAD_REQUESTS = [
    {"verb": "run_wait", "job": "x", "wait_ms": "soon"},
    {"verb": "run_wait", "job": {}, "wait_ms": -1},
    {"verb": "run_start", "persistent_bytes": -1},
    {"verb": "run_start", "persistent_bytes": 1 << 70},
    {"verb": "run_start", "remaining_s": 1 << 62},
    {"verb": "run_start", "wait_ms": 1 << 62},
    {"verb": "run_start", "name": "a\x00b"},
    {"verb": "run_start", "device": "nowhere"},
    {"verb": "why", "job": []},
    {"verb": "status", "job": {"a": 1}},
    {"verb": ["ping"]},
    {"verb": "policy_set", "device": 1.5},
]


def test_no_request_of_a_user_leads_to_a_traceback(salusd):
    daemon = salusd()
    lines = [*map(json.dumps, BAD_REQUESTS), '{"verb": "ping", "x": ' + "[" * 50_000 + "]" * 50_000 + "}", "[]", "{"]
    answers = attack(CONNECT + REQUESTS, daemon.control, STREAM, 1, json.dumps(lines)).splitlines()
    assert [json.loads(answer)["ok"] for answer in answers] == [False] * len(lines)
    assert "Traceback" not in daemon.log.read_text()


def test_no_field_of_an_admins_request_breaks_its_log_line(salusd):
    daemon = salusd()
    lines = [json.dumps({"verb": "reload", field: "x"}) for field in ("uid", "event", "self", "exc_info", "level")]
    answers = attack(CONNECT + REQUESTS, daemon.control, STREAM, 1, json.dumps(lines), uid=0).splitlines()
    assert [json.loads(answer)["ok"] for answer in answers] == [True] * len(lines)
    assert len(log_lines(daemon, "admin request")) == len(lines)
    assert "Traceback" not in daemon.log.read_text()


def test_a_connection_that_only_reports_a_fault_is_closed_in_time(salusd):
    daemon = salusd(config="LocalJobs=no\nHelloTimeout=200ms")
    program = CONNECT + "peer = connect()\npeer.send(bytes.fromhex(sys.argv[4]))\nprint(peer.recv(1))\n"
    assert attack(program, daemon.socket, SEQPACKET, 1, framing.encode(Fault(text="x")).hex()) == "b''\n"


def test_a_user_cannot_open_jobs_without_limit(salusd):
    daemon = salusd(config="UserSessions=5")
    start = json.dumps([json.dumps({"verb": "run_start", "persistent_bytes": 1 << 20})] * 8)
    answers = [json.loads(line) for line in attack(CONNECT + REQUESTS, daemon.control, STREAM, 1, start).splitlines()]
    assert [answer["ok"] for answer in answers] == [True] * 5 + [False] * 3
    assert "UserSessions" in answers[-1]["why"]
