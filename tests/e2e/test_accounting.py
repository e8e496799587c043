"""Our accounting compared with Slurm's: held time agrees with sacct to the second, and users see their own jobs."""

import json
import re
import socket
import sys
import time

import pytest

from accounting.ingest.reconcile import SACCT_FIELDS, read_sacct
from accounting.questions import AskReport, request_of
from accounting.reports.selection import Selection
from accounting.storage.database import open_database
from slurm_plugin.admitd.credentials import digest
from tests.support.cluster_fixtures import OPERATOR, ROOT, SLURM_ROOT
from tests.support.held_time import sacct_held_s, stored_held_s
from tests.support.lab import Lab, wait_for

S = 1_000_000_000


@pytest.fixture(scope="module")
def sacct_table(cluster):
    """Ended jobs in sacct: completed, cancelled, requeued, suspended, timed out, and an array."""
    lab = Lab(cluster)
    release = lab.work / "release"
    waits = lab.script("waits.sh", f"until [ -e {release} ]; do sleep 0.1; done")
    quick = lab.script("quick.sh", "true")
    ids = {
        name: lab.sbatch("--gres=salus:1", "--salus-mem=16M,16M", "--time=1", waits)
        for name in ("requeue", "suspend", "cancel", "timeout")
    }
    for name, parent in (("science", "root"), ("images", "science"), ("vision", "images")):
        lab.ask("sacctmgr", "-i", "add", "account", name, f"parent={parent}")
    ids["quick"] = lab.sbatch("--gres=salus:1", "--salus-mem=16M,16M", "-A", "vision", quick, user="news")
    ids["array"] = lab.sbatch("--gres=salus:1", "--salus-mem=16M,16M", "--array=1-3", quick)
    for name in ("requeue", "suspend", "cancel", "timeout"):
        lab.wait_state(ids[name], "RUNNING")
    # A limit has whole minutes, but an operator may set an earlier end. Slurm checks it every half minute.
    lab.ask("scontrol", "update", f"JobId={ids['timeout']}", "EndTime=now+1")
    for name in ("requeue", "suspend"):
        lab.ask("scontrol", "update", f"JobId={ids[name]}", "TimeLimit=10")
    lab.ask("scontrol", "suspend", ids["suspend"])
    lab.wait_state(ids["suspend"], "SUSPENDED")
    suspended_at = time.time()
    for name, word in (("cancel", "JS1:aBc=="), ("suspend", "tool:abc")):
        comment = lab.field(ids[name], "AdminComment")
        lab.ask("scontrol", "update", f"JobId={ids[name]}", f"AdminComment={comment} {word}")
    lab.ask("scancel", ids["cancel"])
    lab.ask("scontrol", "requeue", ids["requeue"])
    # Slurm counts whole seconds: the suspension must last for more than one.
    wait_for(lambda: time.time() > suspended_at + 2.5, "more than two seconds of suspension")
    lab.ask("scontrol", "resume", ids["suspend"])
    # Slurm holds a requeued job for two minutes after its first run is cleaned up.
    lab.wait_state(ids["requeue"], "PENDING")
    wait_for(lambda: "COMPLETING" not in lab.ask("squeue", "-h", "-o", "%T"), "the first run to be cleaned up")
    lab.ask("scontrol", "update", f"JobId={ids['requeue']}", "StartTime=now")
    wait_for(lambda: lab.state(ids["requeue"]) == "RUNNING", "the requeued job to run again", 180)
    lab.wait_state(ids["timeout"], "TIMEOUT", seconds=60)
    release.touch()
    wait_for(lambda: not lab.ask("squeue", "-h").strip(), lambda: lab.ask("squeue"), 120)
    names = ",".join(ids.values())

    def table():
        command = ("sacct", "-D", "-X", "-P", "-a", "-j", names, "-o", SACCT_FIELDS)
        return lab.run(*command, SLURM_TIME_FORMAT="%s").stdout

    def is_written():
        rows = read_sacct(table(), cluster=cluster.plan.name).rows
        # Look at every run: the first run of a requeued job ended long before the second.
        return len(rows) >= 9 and all(row.record.end_utc_ns is not None for row in rows)

    # slurmdbd learns of an end a moment after slurmctld.
    wait_for(is_written, table, 60)
    return lab, ids, table()


@pytest.fixture(scope="module")
def reconciled(sacct_table):
    """The same jobs after `salus-acct reconcile`."""
    done = acct(sacct_table[0], "reconcile", "-S", "now-1day", "--json")
    assert done.returncode == 0, done.stderr
    return sacct_table


def acct(lab, *words):
    return lab.run(sys.executable, "-m", "cli.acct.main", *words, PYTHONPATH=":".join(sys.path))


def ask(lab, question, user):
    message = json.dumps(request_of(question)).encode()
    options = (f"--socket={lab.cluster.plan.munge_socket}", "--restrict-uid=slurm")
    credential = lab.ask("munge", *options, "--string", digest(message), user=user).strip()
    with socket.create_connection(("127.0.0.1", lab.cluster.plan.ports.admission), timeout=30) as peer:
        peer.sendall(credential.encode() + b" " + message + b"\n")
        return json.loads(peer.makefile().readline())


def test_held_time_agrees_with_sacct_to_the_second_for_every_job(reconciled):
    lab, ids, text = reconciled
    rows = read_sacct(text, cluster=lab.cluster.plan.name).rows
    database = open_database(f"sqlite:///{lab.cluster.plan.path('db', 'salus.db')}")
    held = stored_held_s(database, [row.record.key for row in rows])
    database.close()
    assert held == {row.record.key: sacct_held_s(row) for row in rows}
    requeued = [row for row in rows if row.record.key.job_id == int(ids["requeue"])]
    assert [row.record.key.restart_count for row in requeued] == [0, 1]
    suspended = next(row for row in rows if row.record.key.job_id == int(ids["suspend"]))
    assert suspended.record.suspended_ns >= S
    again = acct(lab, "reconcile", "-S", "now-1day", "--dry-run", "--tolerance", "0")
    assert again.returncode == 0, again.stdout


def test_a_job_past_its_time_limit_is_released_and_counted_up_to_its_end(sacct_table):
    lab, ids, text = sacct_table
    (row,) = [
        row
        for row in read_sacct(text, cluster=lab.cluster.plan.name).rows
        if str(row.record.key.job_id) == ids["timeout"]
    ]
    assert lab.ask("sacct", "-X", "-n", "-P", "-j", ids["timeout"], "-o", "State").strip() == "TIMEOUT"
    assert 1 <= sacct_held_s(row) < 60
    assert not lab.sessions(ids["timeout"])
    for node in lab.cluster.plan.nodes:
        assert not lab.cluster.plan.path("run", node, "jobs", ids["timeout"]).exists()


def test_the_report_counts_what_sacct_counts(reconciled):
    lab, ids, text = reconciled
    rows = read_sacct(text, cluster=lab.cluster.plan.name).rows
    jobs = ",".join(ids.values())
    done = acct(lab, "report", "cluster", "-P", "-n", "-o", "held", "-t", "Seconds", "-j", jobs)
    assert done.stdout.strip() == str(sum(sacct_held_s(row) for row in rows)), done.stderr


def test_users_see_their_own_jobs_and_operators_all(reconciled):
    lab, ids, _ = reconciled
    window = Selection(start_utc_ns=0, end_utc_ns=time.time_ns() + S)
    mine = ask(lab, AskReport(kind="job", selection=window), "news")
    assert mine["ok"], mine
    assert [row["job"] for row in mine["answer"]["rows"] if row["depth"] == 0] == [ids["quick"]]
    everybody = ask(lab, AskReport(kind="job", selection=window), None)
    assert {row["user"] for row in everybody["answer"]["rows"]} == {"games", "news"}
    others = Selection(start_utc_ns=0, end_utc_ns=time.time_ns() + S, users=("games",))
    refused = ask(lab, AskReport(kind="job", selection=others), "news")
    assert (refused["ok"], refused["kind"]) == (False, "not_permitted")
    assert "news is not an operator" in refused["why"]


def test_every_job_has_its_summary_in_the_admin_comment_without_a_command(sacct_table):
    lab, ids, text = sacct_table
    # Rows of the same job are in the order of its runs, so this keeps the last run.
    held = {
        str(row.record.key.job_id): sacct_held_s(row) for row in read_sacct(text, cluster=lab.cluster.plan.name).rows
    }
    jobs = set(held) - {ids["cancel"]}
    wait_for(
        lambda: all(re.search(r" salus-sum:1;(run=\d+;)?held=\d+;", _comment(lab, job)) for job in jobs),
        lambda: (
            f"{[_comment(lab, job) for job in jobs]}\n{lab.cluster.plan.path('log', 'admitd.out').read_text()[-3000:]}"
        ),
    )
    for job in jobs:
        comment = _comment(lab, job)
        assert comment.startswith("salus:1;")
        assert comment.count("salus-sum:1") == 1
        assert re.search(r"held=(\d+)", comment)[1] == str(held[job]), f"{job}: {comment}"
    assert ";run=1;" in _comment(lab, ids["requeue"])
    # The word of another tool stays, and storing the summary again changes nothing.
    assert " tool:abc " in _comment(lab, ids["suspend"])
    output = acct(lab, "job", ids["suspend"], "--store")
    assert output.returncode == 0, output.stderr
    again = _comment(lab, ids["suspend"])
    assert (again.count("salus-sum:1"), again.count("tool:abc")) == (1, 1)
    # If only sacctmgr could write the comment, and would do it in lower case, the comment is left alone.
    assert " JS1:aBc==" in _comment(lab, ids["cancel"])


def test_a_tree_shows_every_level_of_slurms_accounts(reconciled):
    lab, ids, _ = reconciled
    output = acct(lab, "report", "account", "--tree", "-j", ids["quick"], "-o", "account%-20,held")
    lines = [line.split()[:-1] for line in output.stdout.splitlines()[2:7]]
    assert lines == [["science"], ["└", "images"], ["└", "vision"], ["└", "news"], ["Total"]], (
        output.stdout + output.stderr
    )


@pytest.mark.skipif(SLURM_ROOT is not None, reason="another root file system has none of our packages")
def test_commands_work_for_users_and_operators_without_access_to_the_database(reconciled):
    lab, ids, _ = reconciled
    # The users cannot write beside the sources; without a cache of their own, each command would compile them again.
    compiled = lab.work / "compiled"
    compiled.mkdir(exist_ok=True)
    compiled.chmod(0o1777)
    found = {"PYTHONPATH": str(lab.cluster.plan.shown(ROOT)), "PYTHONPYCACHEPREFIX": str(compiled)}

    def run(user, module, *words):
        return lab.run(lab.cluster.python, "-m", module, *words, user=user, **found)

    def ask(user, module, *words):
        done = run(user, module, *words)
        assert done.returncode == 0, f"{user}: {module} {words}: {done.stderr}"
        return done.stdout

    users = ("report", "user", "-P", "-n", "-o", "user", "-S", "now-1hour")
    assert ask("news", "cli.acct.main", *users).split() == ["news"]
    assert {"games", "news"} <= set(ask(OPERATOR, "cli.acct.main", *users).split())
    assert f"job {ids['quick']}" in ask("news", "cli.acct.main", "job", ids["quick"])
    codes = {
        "another's job": run("news", "cli.acct.main", "job", ids["cancel"]),
        "another's report": run("news", "cli.acct.main", "report", "-u", "games"),
        "the database": run("news", "cli.acct.main", "db", "current"),
        "another's profile": run(
            "news", "cli.main", "profiles", "set", "sweep", "--model", "host", "-p", "64M", "-e", "32M", "-u", "games"
        ),
    }
    assert {what: done.returncode for what, done in codes.items()} == {
        "another's job": 3, "another's report": 4, "the database": 4, "another's profile": 4
    }, {what: done.stderr for what, done in codes.items()}  # fmt: skip
    assert all("Traceback" not in done.stderr for done in codes.values())
    database = lab.cluster.plan.path("db", "salus.db")
    assert [lab.run("test", "-r", database, user=user).returncode for user in (None, "news")] == [0, 1]

    ask("games", "cli.main", "profiles", "set", "sweep-own", "--model", "host", "-p", "64M", "-e", "32M")
    listing = ("profiles", "list", "-P")
    assert "sweep-own" in ask("games", "cli.main", *listing)
    assert "64" in ask("games", "cli.main", "profiles", "show", "sweep-own")
    assert "sweep-own" not in ask("news", "cli.main", *listing)
    assert "sweep-own" in ask(OPERATOR, "cli.main", *listing)

    held = lab.sbatch("-H", "--gres=salus:1", "--salus-mem=16M,16M", lab.script("held.sh", "true"))
    try:
        assert held in ask("games", "cli.main", "status")
        assert held not in ask("news", "cli.main", "status")
        assert held in ask(OPERATOR, "cli.main", "status")
        assert f"job {held}: pending" in ask("games", "cli.main", "why", held)
        assert run("news", "cli.main", "why", held).returncode == 3
    finally:
        lab.run("scancel", held)


def _comment(lab, job):
    output = lab.ask("sacct", "-X", "-n", "-P", "-j", job, "-o", "JobIDRaw,AdminComment")
    # For the first task of an array, sacct lists the other tasks too.
    return next(line.partition("|")[2] for line in output.splitlines() if line.startswith(f"{job}|"))
