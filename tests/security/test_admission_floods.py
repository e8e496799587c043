"""Floods of salus-admitd by another user: connections, credentials, requests and reports. Submissions are answered."""

import contextlib
import json
import os
import pwd
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from accounting.questions import AskReport, request_of
from accounting.reports.selection import Selection
from accounting.storage import schema
from accounting.storage.database import open_database
from slurm_plugin.admitd.question_port import CONNECTIONS_MAX, USER_REQUESTS_MAX
from slurm_plugin.cluster.ports import hold_port
from tests.bench.report import MONTH, T0, fill
from tests.support.admitd import SLURM_USER, Admitd
from tests.support.attacker import ATTACKER, attack, start_attack
from tests.support.salusd import wait_until

#: How long slurmctld may wait for a submission under attack.
SUBMIT_MAX_S = 0.6

CONNECT = """
def connect():
    # Not create_connection: it loads a codec, which the attacker may not be able to read.
    peer = socket.socket()
    peer.settimeout(30)
    peer.connect(("127.0.0.1", int(sys.argv[1])))
    return peer
"""

SILENT = (
    CONNECT
    + """
peers = [connect() for _ in range(int(sys.argv[2]))]
print("done", flush=True)
sys.stdin.read()
"""
)

LINES = (
    CONNECT
    + """
for line in json.loads(sys.argv[2]):
    with connect() as peer:
        peer.sendall(line.encode())
        with peer.makefile("rb") as answers:
            print(answers.readline().decode().strip())
"""
)


@pytest.fixture(scope="module")
def admitd():
    with Admitd() as admitd:
        yield admitd


@pytest.fixture
def with_database():
    """A function that starts a salus-admitd with a database of `count` jobs."""
    with contextlib.ExitStack() as stack:

        def start(count=0):
            admitd = Admitd()
            database = open_database(f"sqlite:///{admitd.database}")
            schema.upgrade(database)
            if count:
                fill(database, count)
            database.close()
            return stack.enter_context(admitd)

        yield start


def month():
    fields = request_of(AskReport(selection=Selection(start_utc_ns=T0, end_utc_ns=T0 + MONTH)))
    return fields.pop("verb"), fields


def report_processes(admitd):
    return [
        child for child in psutil.Process(admitd.process.pid).children() if "report_program" in str(child.cmdline())
    ]


def test_only_slurm_user_and_root_can_open_the_socket_for_submissions(admitd):
    program = """
peer = socket.socket(socket.AF_UNIX)
peer.settimeout(30)
try:
    peer.connect(sys.argv[1])
    peer.sendall(b'{"verb": "ping"}\\n')
    print(json.loads(peer.makefile().readline())["ok"])
except PermissionError:
    print("refused")
"""
    assert attack(program, admitd.socket) == "refused\n"
    assert attack(program, admitd.socket, uid=pwd.getpwnam(SLURM_USER).pw_uid) == "True\n"
    assert attack(program, admitd.socket, uid=0) == "True\n"


def test_silent_connections_lock_out_neither_submissions_nor_questions(admitd):
    with start_attack(SILENT, admitd.port, 600) as attacker:
        try:
            assert attacker.stdout.readline() == "done\n", attacker.stderr.read()
            assert admitd.submit()["ok"]
            assert admitd.ask("ping")["ok"]
            assert admitd.question("ping")["user"] == "root"
            assert admitd.question("ping", uid=ATTACKER)["user"] == str(ATTACKER)
        finally:
            attacker.kill()


def test_a_silent_connection_is_closed_and_a_connection_carries_one_request(admitd):
    program = (
        CONNECT
        + """
with connect() as peer:
    print(peer.recv(1))
with connect() as peer, peer.makefile("rb") as answers:
    peer.sendall(b"{}\\n{}\\n")
    print(len(answers.readlines()))
"""
    )
    assert attack(program, admitd.port) == "b''\n1\n"


NESTED = "[" * 5_000 + "]" * 5_000
BAD_LINES = [
    '{"verb": "status", "x": ' + NESTED + ', "credential": "MUNGE:x:"}\n',
    '{"verb": "status", "credential": "MUNGE:x:"}\n',
    "MUNGE:AAAA: {}\n",
    "MUNGE:AAAA: " + NESTED + "\n",
    "MUNGE:" + "A" * 10_000 + ": {}\n",
    "MUNGE:" + "A" * 4000 + ":\n",
    "MUNGE:\x00: {}\n",
    "MUNGE:--help: {}\n",
    " \n",
    "\n",
]


def test_no_line_without_a_good_credential_gets_an_answer_or_leads_to_a_traceback(admitd):
    answers = attack(LINES, admitd.port, json.dumps(BAD_LINES)).splitlines()
    assert [json.loads(answer)["kind"] for answer in answers] == ["not_permitted"] * len(BAD_LINES)
    assert "Traceback" not in admitd.log.read_text()


def test_no_request_with_a_good_credential_leads_to_a_traceback(admitd):
    nested: list = []
    for _ in range(500):
        nested = [nested]
    requests = [
        {"verb": "status", "x": nested},
        {"verb": ["status"]},
        {"verb": "why", "job": {"a": 1}},
        {"verb": "report", "selection": 7},
        {"verb": "profiles", "signature": [[]]},
        {"verb": "nonsense"},
    ]
    assert not any(admitd.send(admitd.sign(request, ATTACKER))["ok"] for request in requests)
    assert "Traceback" not in admitd.log.read_text()


def test_refused_connections_leave_few_lines_in_the_log(admitd):
    before = len(admitd.log.read_text().splitlines())
    program = """
for _ in range(1000):
    with socket.socket(socket.AF_UNIX) as peer:
        try:
            peer.connect(sys.argv[1])
        except OSError:
            pass
"""
    attack(program, admitd.socket)
    attack(LINES, admitd.port, json.dumps(["MUNGE:AAAA: {}\n", "garbage\n"] * 50))
    assert admitd.ask("ping")["ok"]
    assert len(admitd.log.read_text().splitlines()) - before <= 30


def test_the_log_has_the_configured_level_and_format():
    with Admitd("LogLevel=warning\nLogFormat=json") as admitd:
        assert admitd.submit()["ok"]
        lines = admitd.log.read_text().splitlines()
    assert not [line for line in lines if json.loads(line)["level"] in ("debug", "info")]


def test_idle_connections_to_the_metrics_port_start_no_threads():
    holder = hold_port()
    port = holder.getsockname()[1]
    with holder, Admitd(f"AdmissionMetricsPort={port}") as admitd, start_attack(SILENT, port, 200) as attacker:
        try:
            before = len(list(Path(f"/proc/{admitd.process.pid}/task").iterdir()))
            assert attacker.stdout.readline() == "done\n", attacker.stderr.read()
            assert admitd.submit()["ok"]
            assert len(list(Path(f"/proc/{admitd.process.pid}/task").iterdir())) < before + 20
        finally:
            attacker.kill()


def test_a_report_runs_in_another_process_which_is_replaced_when_it_dies(with_database):
    admitd = with_database()
    verb, fields = month()
    assert admitd.question(verb, **fields)["ok"]
    (worker,) = report_processes(admitd)
    assert worker.nice() > psutil.Process(admitd.process.pid).nice()
    os.kill(worker.pid, signal.SIGKILL)
    # The first worker may not have been reaped when the next question arrives; the second answers in any case.
    answers = [admitd.question(verb, **fields) for _ in range(3)]
    assert answers[-1]["ok"], answers
    assert "Traceback" not in admitd.log.read_text()


def test_the_report_processes_end_with_the_service(with_database):
    admitd = with_database()
    verb, fields = month()
    assert admitd.question(verb, **fields)["ok"]
    workers = report_processes(admitd)
    admitd.process.kill()
    admitd.process.wait()
    wait_until(lambda: not any(worker.is_running() for worker in workers), "the workers end", admitd.log_tail)


def ask_many(admitd, uid, count):
    """`count` reports for one user at the same time; returns the answers."""
    verb, fields = month()
    # The credentials are made first, so that all questions arrive together.
    lines = [admitd.sign({"verb": verb, **fields}, uid) for _ in range(count)]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(admitd.send, lines))


def test_a_user_has_few_questions_open_at_a_time_and_submissions_are_answered(with_database):
    admitd = with_database()
    count = USER_REQUESTS_MAX * 2
    answers: list = []
    flood = threading.Thread(target=lambda: answers.extend(ask_many(admitd, ATTACKER, count)))
    flood.start()
    while flood.is_alive():
        assert admitd.submit()["ok"]
        flood.join(0.01)
    refused = [answer["why"] for answer in answers if not answer["ok"]]
    assert all("too many requests at once" in why for why in refused), refused
    assert len(answers) == count
    assert USER_REQUESTS_MAX <= count - len(refused) < count
    assert len(report_processes(admitd)) == 1
    assert ask_many(admitd, 0, 1)[0]["ok"]


@pytest.mark.redteam
@pytest.mark.timeout(900)
def test_submissions_stay_fast_while_one_user_asks_for_forty_large_reports(with_database):
    admitd = with_database(100_000)
    # Root's reports are the largest.
    flood = threading.Thread(target=ask_many, args=(admitd, 0, 40))
    flood.start()
    longest_s, count = 0.0, 0
    while flood.is_alive() or not count:
        started_s = time.monotonic()
        assert admitd.submit(uid=6)["ok"]
        longest_s, count = max(longest_s, time.monotonic() - started_s), count + 1
        flood.join(0.01)
    assert longest_s < SUBMIT_MAX_S, count
    assert psutil.Process(admitd.process.pid).memory_info().rss < 300 * 1024 * 1024


@pytest.mark.redteam
@pytest.mark.timeout(900)
def test_submissions_stay_fast_under_floods_of_connections_and_credentials(admitd):
    flood = (
        CONNECT
        + """
print("done", flush=True)
end = time.monotonic() + 20
peers = []
while time.monotonic() < end:
    try:
        peer = connect()
        if len(peers) % 2:
            peer.sendall(b"MUNGE:AAAA: " + b"[" * 1000 + b"\\n")
        peers.append(peer)
    except OSError:
        pass
    if len(peers) > 600:
        peers.pop(0).close()
"""
    )
    with contextlib.ExitStack() as stack:
        attackers = [stack.enter_context(start_attack(flood, admitd.port, uid=ATTACKER + n)) for n in range(3)]
        stack.callback(lambda: [attacker.kill() for attacker in attackers])
        for attacker in attackers:
            assert attacker.stdout.readline() == "done\n", attacker.stderr.read()
        longest_s = 0.0
        while any(attacker.poll() is None for attacker in attackers):
            started_s = time.monotonic()
            assert admitd.submit(uid=6)["ok"]
            longest_s = max(longest_s, time.monotonic() - started_s)
        assert longest_s < SUBMIT_MAX_S
    assert CONNECTIONS_MAX < 600
    assert admitd.question("ping")["ok"]
    assert "Traceback" not in admitd.log.read_text()
