"""Names of jobs and accounts that imitate Slurm's output: no other account is charged, and nobody's records stop."""

import json
import sys
import time

import pytest
from sqlalchemy import select

from accounting.records import Source
from accounting.storage.database import open_database
from accounting.storage.tables import JOBS
from tests.support.lab import Lab, wait_for

VICTIM = "victim"
MEMORY = ("--gres=salus:1", "--salus-mem=16M,16M")
HOURS = 1534

# Not in `make test`: other tests restart salus-admitd, whose first round then covers all jobs of the run. That takes
# longer than these tests may wait.
pytestmark = pytest.mark.redteam


def forged_row(cluster, cut, line_end):
    """A name that ends the row of its job and adds a row with many hours for another account."""
    now_s = int(time.time())
    # The fields up to JobName, and those after it, with `cut` between them.
    head = ["900001", "1", cluster, "news", "", VICTIM, "", "", "y"]
    tail = ["", "", "", "", str(now_s - HOURS * 3600), str(now_s), "", "", "gres/salus=1", "", ""]
    rest_of_own_row, head_of_next_row = [""] * 12, ["900002", *[""] * 8]
    rows = [["x", *rest_of_own_row[1:]], [*head, *tail], head_of_next_row]
    return line_end.join(cut.join(row) for row in rows)


def names_of(cluster):
    plain = ["a\x1fb", "a|b", "a\nb", "a\vb", "a\u2028b", "\x1b[2J\r\u202eb", "x\n   AdminComment=evil:1\n"]
    forged = [forged_row(cluster.plan.name, cut, end) for cut in ("\x1f", "|") for end in ("\n", "\v", "\u2028")]
    return plain + forged


def comment_of(lab, job):
    return lab.ask("sacct", "-X", "-n", "-P", "-j", job, "-o", "AdminComment")


def admission_log(lab):
    return lab.cluster.plan.path("log", "admitd.out").read_text()[-3000:]


def stored_jobs(lab):
    database = open_database(f"sqlite:///{lab.cluster.plan.path('db', 'salus.db')}")
    try:
        with database.reading() as connection:
            columns = (JOBS.c.slurm_job_id, JOBS.c.name, JOBS.c.account, JOBS.c.source)
            return {str(row.slurm_job_id): row for row in connection.execute(select(*columns))}
    finally:
        database.close()


def in_slurmdbd(name):
    """A name as this cluster's database keeps it: without the characters that Latin-1 lacks."""
    return name.encode("latin-1", "replace").decode("latin-1")


@pytest.fixture(scope="module")
def forged(cluster):
    """Jobs with forged names and accounts, by their ids, and an honest job after them. All have ended."""
    lab = Lab(cluster)
    quick = lab.script("forger.sh", "true")
    jobs = {lab.sbatch(*MEMORY, "-J", name, quick): name for name in names_of(cluster)}
    # Slurm does not check the account if AccountingStorageEnforce is off.
    accounts = {lab.sbatch(*MEMORY, "-A", name, quick): name for name in names_of(cluster)[:6]}
    wait_for(lambda: not lab.ask("squeue", "-h", "-p", "main").strip(), lambda: lab.ask("squeue"), 120)
    honest = lab.sbatch(*MEMORY, "-J", "honest", quick, user="news")
    lab.wait_state(honest, "COMPLETED")
    return jobs, accounts, honest


def test_a_forged_name_charges_nobody_and_stops_nothing(lab, forged):
    jobs, accounts, honest = forged
    for job in (honest, *jobs, *accounts):
        wait_for(
            lambda job=job: "salus-sum:1;" in comment_of(lab, job),
            lambda job=job: f"the summary of job {job} {jobs.get(job)!r}: {admission_log(lab)}",
            60,
        )
    stored = stored_jobs(lab)
    assert {stored[job].source for job in (honest, *jobs, *accounts)} == {Source.SLURM}
    assert not {"900001", "900002"} & stored.keys()
    assert VICTIM not in {row.account for row in stored.values()}
    assert {job: stored[job].name for job in jobs} == {job: in_slurmdbd(name) for job, name in jobs.items()}
    assert {job: stored[job].account for job in accounts} == {
        job: in_slurmdbd(name.lower()) for job, name in accounts.items()
    }
    assert all("evil" not in comment_of(lab, job) for job in jobs)


def test_a_forged_name_does_not_act_on_the_terminal_of_a_reader(lab, forged):
    def report(*options):
        words = ("report", "job", "-S", "now-1hour", *options)
        done = lab.run(sys.executable, "-m", "cli.acct.main", *words, PYTHONPATH=":".join(sys.path))
        assert done.returncode == 0, done.stderr
        return done.stdout

    names = {in_slurmdbd(name) for name in forged[0].values()}
    for options in (("-P",), ("--csv",), ()):
        text = report(*options, "-o", "jobid,jobname%40,account")
        assert all(line.isprintable() for line in text.split("\n")), text
    document = report("--json")
    assert all(line.isprintable() for line in document.split("\n"))
    assert names <= {row["name"] for row in json.loads(document)["data"]["rows"]}
