"""The background work of salus-admitd: Slurm's times, summaries after the usage has arrived, and retention."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from sqlalchemy import select

from accounting.ingest.ledger import LedgerWriter
from accounting.ingest.reconcile import SACCT_FIELDS
from accounting.reports.report import make_report
from accounting.reports.selection import Selection
from accounting.storage import schema
from accounting.storage.database import Database, open_database
from accounting.storage.tables import JOBS
from accounting.viewer import Viewer
from nodedaemon.config import Config, load_or_raise
from nodedaemon.wire.envelope import UnreachableError
from nodedaemon.wire.segment import SUMMARY_MARK
from slurm_plugin.admitd.upkeep import FIRST_LOOK_BACK_NS, LOOK_BACK_NS, Upkeep
from slurm_plugin.slurm import SlurmError
from slurm_plugin.slurm.cli import SlurmCommands
from slurm_plugin.slurm.sacct import read_runs, store_summaries
from tests.support.lab import wait_for
from tests.support.scenario import END, T0, S, dump, records

ROOT = Viewer(uid=0, user="root", is_operator=True)
FIELDS = SACCT_FIELDS.split(",")


def delimiter_of(option: str) -> str:
    """The delimiter in an option of sacct or squeue. It begins with the last x: the rest is hexadecimal."""
    return f"x{option.rpartition('x')[2]}"


def delimited(rows: list[list[str]], delimiter: str) -> str:
    return "".join("".join(cell + delimiter for cell in row) + "\n" for row in rows)


class FakeSlurm:
    """Slurm's commands. slurmctld has the comments of jobs that it remembers (`living`), slurmdbd has all (`kept`)."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}
        self.living: dict[str, str] = {}
        self.rows: list[tuple[str, str, int, int]] = []
        self.changes: list[tuple[str, ...]] = []
        #: Job numbers of array tasks by their names.
        self.raws: dict[str, str] = {}
        self.names: dict[str, str] = {}
        #: Rows of sacct that are not like those of a job.
        self.odd_rows: list[dict[str, str]] = []
        self.state = "COMPLETED"
        #: 22.05 does not change a job that has ended; later releases do.
        self.is_strict = True

    def run(self, *argv: str) -> str:
        match argv:
            case ("sacct", "-n", "-p", delimiter, "-X", "-j", job, "-o", "JobIDRaw,AdminComment"):
                rows = [["9999", "not this one"], [self.raws.get(job, job), self.kept[job]]]
                return delimited(rows, delimiter_of(delimiter))
            case ("sacct", "-n", "-p", delimiter, *_):
                found = [*self.odd_rows, *(self._row(*row) for row in self.rows)]
                return delimited([[row.get(name, "") for name in FIELDS] for row in found], delimiter_of(delimiter))
            case ("squeue", "--noheader", "--states=all", job, columns):
                name = job.partition("=")[2]
                if name not in self.living:
                    raise SlurmError("Slurm: squeue: slurm_load_jobs error: Invalid job id specified")
                rows = [["9999", "not this one"], [self.raws.get(name, name), self.living[name].ljust(2000)]]
                return delimited(rows, delimiter_of(columns))
            case ("scontrol", "update", job, comment):
                if job[6:] not in self.living or self.is_strict:
                    raise SlurmError("Slurm: scontrol update: Job has already finished")
                self.changes.append(argv)
                self.living[job[6:]] = self.kept[job[6:]] = comment.partition("=")[2]
                return ""
            case ("sacctmgr", "-i", "modify", "job", "where", job, "set", comment):
                self.changes.append(argv)
                # As sacctmgr 22.05 does.
                self.kept[job.partition("=")[2]] = comment.partition("=")[2].lower()
                return ""
            case ("sacctmgr", *_):
                return "alpha|vision|science|\n"
        raise AssertionError(argv)

    def _row(self, job: str, partition: str, start: int, end: int) -> dict[str, str]:
        return {
            "JobIDRaw": self.raws.get(job, job), "JobID": job, "Cluster": "alpha", "User": "ada", "Account": "vision",
            "Partition": partition, "JobName": self.names.get(job, "x"), "State": self.state,
            "Start": str(T0 // S + start), "End": str(T0 // S + end), "ElapsedRaw": str(end - start),
            "AllocTRES": "gres/salus=1", "AdminComment": self.kept[job],
        }  # fmt: skip


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with the hand-computed hour. Creating the schema takes longer than any test here."""
    path = tmp_path_factory.mktemp("filled") / "salus.db"
    database = open_database(f"sqlite:///{path}", may_create=True)
    schema.upgrade(database)
    LedgerWriter(database).write(records())
    database.close()
    return path


@pytest.fixture
def database(filled: Path, tmp_path: Path) -> Iterator[Database]:
    shutil.copyfile(filled, tmp_path / "salus.db")
    database = open_database(f"sqlite:///{tmp_path}/salus.db")
    yield database
    database.close()


def config_of(tmp_path: Path, *lines: str) -> Config:
    path = tmp_path / "salus.conf"
    path.write_text("\n".join(["ClusterName=alpha", "SingleHost=yes", *lines, ""]))
    return load_or_raise(path)


def upkeep_of(tmp_path: Path, database: Database, slurm: FakeSlurm, *lines: str) -> Upkeep:
    return Upkeep(config_of(tmp_path, *lines), lambda: database, slurm)  # type: ignore[arg-type]


@pytest.fixture(params=[True, False], ids=["22.05", "later"])
def slurm(request: pytest.FixtureRequest) -> FakeSlurm:
    """A Slurm of each kind: one that refuses to change an ended job, and one that does not."""
    slurm = FakeSlurm()
    slurm.is_strict = request.param
    return slurm


def test_a_finished_job_gets_its_summary_beside_other_words(
    tmp_path: Path, database: Database, slurm: FakeSlurm
) -> None:
    slurm.rows = [("101", "gpu", 0, 3600), ("102", "gpu", 600, 2400)]
    # One tool wrote to slurmdbd alone, another to slurmctld alone.
    slurm.kept = {"101": "salus:1;adm=a101 js1:x", "102": "salus:1;adm=a102"}
    slurm.living = {"101": "salus:1;adm=a101 other:y"}
    upkeep = upkeep_of(tmp_path, database, slurm)
    upkeep.compare(END)
    assert slurm.kept["101"].startswith(f"salus:1;adm=a101 js1:x other:y {SUMMARY_MARK};held=3600;occ=2250;busy=1500;")
    # slurmctld has forgotten this one.
    assert slurm.kept["102"].startswith(f"salus:1;adm=a102 {SUMMARY_MARK};held=1800;")
    before = len(slurm.changes)
    upkeep.compare(END)
    assert len(slurm.changes) == before == 2
    assert (upkeep.counters.summary_count, upkeep.counters.failure_count) == (2, 0)


def test_a_task_with_the_number_of_its_array_gets_a_summary_of_its_own(
    tmp_path: Path, database: Database, slurm: FakeSlurm
) -> None:
    slurm.rows, slurm.raws = [("900_1", "gpu", 0, 60), ("900_2", "gpu", 0, 90)], {"900_1": "901", "900_2": "900"}
    slurm.kept = {"900_1": "", "900_2": ""}
    slurm.living = dict(slurm.kept)
    upkeep_of(tmp_path, database, slurm).compare(END)
    assert [slurm.kept[name].split(";")[1] for name in ("900_1", "900_2")] == ["held=60", "held=90"]
    assert all("900_" in word for argv in slurm.changes for word in argv if word.lower().startswith("jobid="))


def test_words_that_sacctmgr_would_change_are_not_touched(tmp_path: Path, database: Database) -> None:
    slurm = FakeSlurm()
    slurm.rows = [("101", "gpu", 0, 3600)]
    slurm.kept = {"101": "salus:1;adm=a101;P=5 JS1:H4sIAB"}
    slurm.living = dict(slurm.kept)
    upkeep = upkeep_of(tmp_path, database, slurm)
    upkeep.compare(END)
    assert slurm.kept == {"101": "salus:1;adm=a101;P=5 JS1:H4sIAB"}
    assert (upkeep.counters.left_out_count, upkeep.counters.failure_count) == (1, 0)
    # If slurmctld still accepts changes, no word can be damaged.
    slurm.is_strict = False
    upkeep.compare(END)
    assert slurm.kept["101"].startswith(f"salus:1;adm=a101;P=5 JS1:H4sIAB {SUMMARY_MARK};held=3600;")


def test_a_summary_waits_for_the_usage_but_not_forever(tmp_path: Path, database: Database) -> None:
    slurm = FakeSlurm()
    slurm.rows, slurm.kept, slurm.living = [("900", "gpu", 0, 60)], {"900": ""}, {"900": ""}
    upkeep = upkeep_of(tmp_path, database, slurm, "UsageInterval=300")
    upkeep.compare(T0 + 100 * S)
    assert slurm.changes == []
    upkeep.compare(T0 + 500 * S)
    assert slurm.kept["900"].startswith(f"{SUMMARY_MARK};held=60;")


def test_a_requeued_job_gets_one_summary_after_its_last_run(tmp_path: Path, database: Database) -> None:
    slurm = FakeSlurm()
    slurm.rows, slurm.kept, slurm.living = [("201", "gpu", 0, 1000)], {"201": ""}, {"201": ""}
    slurm.state = "REQUEUED"
    upkeep = upkeep_of(tmp_path, database, slurm)
    upkeep.compare(END)
    assert slurm.changes == []
    # The job was requeued after its end: two runs have ended, and the comment has a summary of the first.
    slurm.state = "COMPLETED"
    upkeep.compare(END)
    assert "run=" not in slurm.kept["201"]
    slurm.rows.append(("201", "gpu", 1800, 3000))
    upkeep.compare(END)
    assert f"{SUMMARY_MARK};run=1;held=1200;" in slurm.kept["201"]
    assert slurm.kept["201"].count(SUMMARY_MARK) == 1
    upkeep.compare(END)
    assert len(slurm.changes) == 2


def test_a_partition_without_summaries_gets_none(tmp_path: Path, database: Database) -> None:
    slurm = FakeSlurm()
    slurm.rows = [("101", "quiet", 0, 3600), ("102", "gpu", 600, 2400)]
    slurm.kept = slurm.living = {"101": "", "102": ""}
    upkeep_of(tmp_path, database, slurm, "PartitionName=quiet JobSummary=no").compare(END)
    assert slurm.kept["101"] == ""
    assert SUMMARY_MARK in slurm.kept["102"]


def test_slurms_times_replace_ours(tmp_path: Path, database: Database) -> None:
    slurm = FakeSlurm()
    slurm.rows, slurm.kept = [("101", "gpu", 0, 3500)], {"101": f"{SUMMARY_MARK};held=1"}
    upkeep_of(tmp_path, database, slurm).compare(END)
    whole = Selection(start_utc_ns=0, end_utc_ns=END)
    made = make_report(database, ROOT, "job", whole, now_utc_ns=END)
    assert next(row.measures.held_ns // S for row in made.rows if row.job == "101") == 3500
    assert slurm.changes == []


def test_a_job_that_slurm_refuses_to_change_does_not_stop_the_others(tmp_path: Path, database: Database) -> None:
    slurm = FakeSlurm()
    slurm.rows = [("101", "gpu", 0, 3600), ("102", "gpu", 600, 2400)]
    slurm.kept = slurm.living = {"101": "", "102": ""}
    run = slurm.run

    def refusing(*argv: str) -> str:
        if argv[0] in ("scontrol", "sacctmgr") and any(word.lower() == "jobid=101" for word in argv):
            raise SlurmError("Slurm: scontrol update: Access/permission denied")
        return run(*argv)

    slurm.run = refusing  # type: ignore[method-assign]
    upkeep = upkeep_of(tmp_path, database, slurm)
    upkeep.compare(END)
    assert (upkeep.counters.summary_count, upkeep.counters.failure_count) == (1, 1)
    assert SUMMARY_MARK in slurm.kept["102"]


FORGED = "\x1f".join(["x", *[""] * 11]) + "\n" + "\x1f".join(["7", "7", "alpha", "ben", "", "victim", *[""] * 14])


@pytest.mark.parametrize(
    "name", ["a\x1fb", "a|b", "a\nb", "a\vb", "a\u2028b", "a\r\nb", "\n", FORGED, FORGED.replace("\x1f", "|")]
)
def test_a_name_can_be_anything(tmp_path: Path, database: Database, name: str) -> None:
    slurm = FakeSlurm()
    slurm.rows, slurm.names = [("900", "gpu", 0, 60), ("901", "gpu", 0, 60)], {"900": name}
    slurm.kept = {"900": name, "901": ""}
    slurm.living = dict(slurm.kept)
    upkeep = upkeep_of(tmp_path, database, slurm)
    upkeep.compare(END)
    with database.reading() as connection:
        rows = connection.execute(select(JOBS.c.slurm_job_id, JOBS.c.name, JOBS.c.account)).all()
    assert [(row.name, row.account) for row in rows if row.slurm_job_id == 900] == [(name, "vision")]
    assert "victim" not in {row.account for row in rows}
    assert (upkeep.counters.skipped_count, upkeep.counters.failure_count) == (0, 0)
    assert SUMMARY_MARK in slurm.kept["901"]


def test_bad_rows_are_counted_and_do_not_stop_the_others(tmp_path: Path, database: Database) -> None:
    slurm = FakeSlurm()
    slurm.rows, slurm.kept = [("900", "gpu", 0, 60)], {"900": ""}
    slurm.odd_rows = [{"JobIDRaw": "x", "AllocTRES": "gres/salus=1"}, {"JobIDRaw": "1", "AllocTRES": "cpu=1"}]
    upkeep = upkeep_of(tmp_path, database, slurm)
    for _ in range(2):
        upkeep.compare(END)
    assert upkeep.counters.skipped_count == 1
    assert SUMMARY_MARK in slurm.kept["900"]


def test_a_round_that_fails_on_a_row_does_not_hold_up_later_rounds(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = FakeSlurm()
    slurm.rows, slurm.kept = [("900", "gpu", 0, 60)], {"900": ""}
    windows: list[tuple[int, int]] = []

    def broken(_database: Database, _rows: object, *, window: tuple[int, int]) -> None:
        windows.append(window)
        raise failure

    monkeypatch.setattr("slurm_plugin.admitd.upkeep.reconcile", broken)
    upkeep = upkeep_of(tmp_path, database, slurm)
    for failure in (UnreachableError("no database"), ValueError("a bug"), ValueError("a bug")):
        with pytest.raises(type(failure)):
            upkeep.compare(END)
    look_backs = [window[1] - window[0] for window in windows]
    # Without a database, the next round covers the same time.
    assert look_backs == [FIRST_LOOK_BACK_NS, FIRST_LOOK_BACK_NS, LOOK_BACK_NS]


def test_a_job_that_is_not_in_the_database_does_not_stop_the_summaries_of_others(
    tmp_path: Path, database: Database
) -> None:
    slurm = FakeSlurm()
    slurm.rows = [("700", "gpu", 0, 60), ("101", "gpu", 0, 3600)]
    slurm.kept = {"700": "", "101": ""}
    rows = read_runs(cast(SlurmCommands, slurm), (0, END), cluster="alpha").rows
    stored = store_summaries(cast(SlurmCommands, slurm), config_of(tmp_path), database, rows, now_utc_ns=END)
    assert (stored.count, len(stored.failures)) == (1, 1)
    assert "job 700" in stored.failures[0]


def test_roll_up_and_purge_follow_their_keys(tmp_path: Path, database: Database) -> None:
    now_ns = END + 40 * 86_400 * S
    before = dump(database)
    upkeep_of(tmp_path, database, FakeSlurm(), "RollUpAfter=0").retain(now_ns)
    assert dump(database) == before, "0 means never"
    upkeep_of(tmp_path, database, FakeSlurm(), "RollUpAfter=30-00:00:00").retain(now_ns)
    assert dump(database)["usage"] != before["usage"]
    assert len(dump(database)["jobs"]) == len(before["jobs"])
    upkeep_of(tmp_path, database, FakeSlurm(), "PurgeAfter=35-00:00:00").retain(now_ns)
    assert dump(database)["jobs"] == []


def test_the_thread_does_both_by_itself_and_stops(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_plugin.admitd.upkeep.time.time_ns", lambda: END + 3 * 86_400 * S)
    slurm = FakeSlurm()
    slurm.rows, slurm.kept, slurm.living = [("101", "gpu", 0, 3600)], {"101": ""}, {"101": ""}
    lines = ("AccountingInterval=50ms", "RetentionInterval=50ms", "PurgeAfter=1-00:00:00")
    upkeep = upkeep_of(tmp_path, database, slurm, *lines)
    upkeep.start()
    wait_for(lambda: upkeep.counters.summary_count and not dump(database)["jobs"], lambda: str(upkeep.counters))
    upkeep.stop()
    assert not upkeep._thread.is_alive()


def test_intervals_of_zero_start_nothing(tmp_path: Path, database: Database) -> None:
    upkeep = upkeep_of(tmp_path, database, FakeSlurm(), "AccountingInterval=0", "RetentionInterval=0")
    upkeep.start()
    upkeep._thread.join(5.0)
    assert not upkeep._thread.is_alive()
