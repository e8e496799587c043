"""salus-acct and salus profiles as a user calls them, on a SQLite database that holds the scenario."""

import json
from pathlib import Path

import pytest

from accounting.ingest.ledger import LedgerWriter
from accounting.records import JobRecord
from accounting.storage import schema
from accounting.storage.database import open_database
from cli import entry, main
from cli.acct import main as acct
from tests.support.scenario import T0, S, key, records

DAY = ["-S", "2026-11-01", "-E", "2026-11-02"]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("acct")
    database = open_database(f"sqlite:///{directory}/salus.db")
    schema.upgrade(database)
    LedgerWriter(database).write(records())
    database.close()
    conf = directory / "salus.conf"
    conf.write_text(f"ClusterName=alpha\nStorageUrl=sqlite:///{directory}/salus.db\n")
    return conf


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    for name in ("SALUS_ACCT_FORMAT", "SLURM_TIME_FORMAT"):
        monkeypatch.delenv(name, raising=False)


def run(conf: Path, *words: str) -> int:
    return entry.run(acct.app, "salus-acct", ["-f", str(conf), *words])


def test_the_plain_report_has_totals_and_what_was_avoided(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(filled, "report", *DAY) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert lines[0].startswith("Salus report  cluster=alpha  2026-11-01T00:00:00 .. 2026-11-02T00:00:00   devices: 2")
    assert any(
        line.split() == ["├", "ada", "1.00", "0.62", "0.42", "66.7%", "1.20x", "66.67M.h", "1.00"] for line in lines
    )
    assert any(line.split()[:4] == ["Total", "2.19", "1.78", "1.36"] for line in lines)
    assert "Avoided: 2 OOM (1 refused at submit, 1 made to wait).  Waits: median 00:01:40, p95 00:13:20." in text
    assert "\x1b" not in text


def test_parsable_output_has_one_line_per_row(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(filled, "report", "job", "-X", "-P", "-n", "-o", "jobid,restarts,held,suspended", *DAY) == 0
    assert capsys.readouterr().out.splitlines() == [
        "101|0|01:00:00|00:00:00",
        "201|0|00:16:40|00:00:00",
        "102|0|00:30:00|00:00:00",
        "201|1|00:15:00|00:05:00",
        "301|0|00:10:00|00:00:00",
    ]
    assert run(filled, "report", "user", "-p", "-n", "-o", "user,held", "-t", "Seconds", *DAY) == 0
    assert capsys.readouterr().out.splitlines() == ["ada|4200|", "ben|1800|", "cyd|1900|"]


def test_names_do_not_act_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = open_database(f"sqlite:///{tmp_path}/salus.db")
    schema.upgrade(database)
    name = "a\x1b[2J\rb\x9b\u2028c\u202e\x7f\nd"
    job = JobRecord(key=key(7), user=name, account=name, name=name, start_utc_ns=T0, end_utc_ns=T0 + S)
    LedgerWriter(database).write([job])
    database.close()
    conf = tmp_path / "salus.conf"
    conf.write_text(f"ClusterName=alpha\nStorageUrl=sqlite:///{tmp_path}/salus.db\n")
    fields = ("-o", "user%60,account%60", *DAY)
    for words in (
        ("report", "job", *fields), ("report", "job", "-P", *fields), ("report", "job", "--csv", *fields),
        ("report", "job", "--json", *DAY), ("report", *DAY), ("job", "7"), ("job", "7", "--json"), ("job", name),
    ):  # fmt: skip
        assert (run(conf, *words) == 0) == (words[-1] != name)
        written = capsys.readouterr()
        for text in (written.out, written.err):
            assert all(line.isprintable() for line in text.split("\n")), words
        assert "[2J" in written.out + written.err


def test_units_of_time_are_those_of_sreport(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = {}
    for unit in ("Hours", "minutes", "Seconds", "Percent", "SecPer"):
        assert run(filled, "report", "cluster", "-P", "-n", "-o", "held", "-t", unit, *DAY) == 0
        seen[unit] = capsys.readouterr().out.strip()
    expected = {"Hours": "2.19", "minutes": "131.7", "Seconds": "7900", "Percent": "100.00%", "SecPer": "7900(100.00%)"}
    assert seen == expected


def test_json_is_in_base_units_with_its_schema(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(filled, "report", "account", "--json", *DAY) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["meta"]["schema"] == 1
    vision = next(row for row in output["data"]["rows"] if row["account"] == "vision" and row["depth"] == 0)
    assert (vision["measures"]["held_ns"], vision["measures"]["occupied_ns"]) == (5400 * 10**9, 3600 * 10**9)
    assert vision["measures"]["sharing_gain"] == pytest.approx(4200 / 3600)
    nlp = next(row for row in output["data"]["rows"] if row["account"] == "nlp" and row["depth"] == 0)
    assert nlp["measures"]["sharing_gain"] is None


def test_csv_and_format_follow_the_environment(
    filled: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SALUS_ACCT_FORMAT", "user%-12,busy")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "%d.%m.")
    assert run(filled, "report", "user", "--csv", *DAY) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["User,Busy", "ada,0.58"]
    assert run(filled, "report", "job", "-X", "-n", "-P", "-o", "start", "-j", "101") == 0
    assert capsys.readouterr().out == "01.11.\n"


def test_filters_accept_lists_as_in_sacct(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, jobs in (
        (("-u", "ada,ben"), {"101", "102", "301"}),
        (("-A", "nlp"), {"201", "301"}),
        (("-r", "gpu"), {"101", "102", "201", "301"}),
        (("-N", "n[1-2]"), {"101", "102", "201", "301"}),
        (("-j", "101,201"), {"101", "201"}),
        (("-M", "alpha", "-u", "cyd"), {"201"}),
    ):
        assert run(filled, "report", "job", "-X", "-P", "-n", "-o", "jobid", *words, *DAY) == 0
        assert set(capsys.readouterr().out.split()) == jobs


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("report", "-S", "2027-01-01", "-E", "2027-01-02"), 3, "no data in this window"),
        (("report", "-S", "soon"), 2, "invalid time"),
        (("report", "-S", "2026-11-02", "-E", "2026-11-01"), 2, "ends before it begins"),
        (("report", "-o", "hold"), 2, "did you mean held?"),
        (("report", "-N", "n[1-"), 2, "-N n[1-"),
        (("report", "-a", "-u", "ada"), 2, "contradict"),
        (("job", "4711"), 3, "job not found: 4711"),
        (("job", "x"), 2, "invalid job id"),
        (("report", "nonsense"), 2, ""),
    ],
)
def test_each_error_has_its_exit_code_and_message(
    filled: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, text: str
) -> None:
    assert run(filled, *words) == code
    assert text in capsys.readouterr().err


def test_a_missing_database_is_unreachable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = tmp_path / "salus.conf"
    conf.write_text(f"StorageUrl=sqlite:///{tmp_path}/none.db\n")
    assert run(conf, "report") == 5
    assert "salus-acct db upgrade" in capsys.readouterr().err
    assert not (tmp_path / "none.db").exists()


def test_helpformat_lists_every_field(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from cli.acct.report_fields import FIELDS

    assert run(filled, "report", "-e") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [field.name for field in FIELDS]


def test_a_jobs_page_has_bars_and_names_the_line_to_change(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(filled, "job", "102") == 0
    text = capsys.readouterr().out
    assert "Busy          00:15:00  [||||||||||||||||||||          ]  67% of occupied (efficiency)" in text
    assert "#SBATCH --salus-mem=200M,300M" in text
    assert "shards of device d0: 30 shards needed, 10 free; wait for a job to end" in text


def test_the_schema_commands_succeed_on_a_current_database(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(filled, "db", "upgrade") == 0
    assert run(filled, "db", "current") == 0
    assert run(filled, "db", "check") == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"schema {schema.head()}: ok"


def test_profiles_can_be_exported_and_imported(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def salus(conf: Path, *words: str) -> int:
        return entry.run(main.app, "salus", ["-f", str(conf), "profiles", *words])

    other = tmp_path / "salus.conf"
    other.write_text(f"ClusterName=beta\nStorageUrl=sqlite:///{tmp_path}/beta.db\n")
    assert run(other, "db", "upgrade") == 0
    assert salus(filled, "export", str(tmp_path / "profiles.json")) == 0
    assert salus(other, "import", str(tmp_path / "profiles.json")) == 0
    capsys.readouterr()
    assert salus(other, "list", "-P") == 0
    assert [line.split("|")[:5] for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["ada", "cnn", "Tester 1G", "100M", "400M"],
        ["ben", "rnn", "Tester 1G", "200M", "300M"],
    ]
    assert salus(other, "set", "cnn", "-u", "ada", "--model", "Tester 1G", "-p", "200M", "-e", "1G") == 0
    assert salus(other, "forget", "rnn") == 0
    assert salus(other, "show", "rnn") == 3
    capsys.readouterr()
    assert salus(other, "history", "-P") == 0
    causes = [line.split("|")[7] for line in capsys.readouterr().out.splitlines()[1:]]
    assert sorted(causes) == ["forgotten", "imported", "imported", "set"]
    assert salus(filled, "set", "cnn", "-u", "ada", "--model", "Tester 1G", "-p", "1M", "-e", "1M") == 2
    assert "below the measured" in capsys.readouterr().err
