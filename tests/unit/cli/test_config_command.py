"""`salus config check` and `salus config show`, as a user calls them."""

import json

import pytest

from cli.entry import run
from cli.main import app
from nodedaemon.config.document import template_text

BAD = "MaxLane=2\nPolicy=srft\n"
GOOD = "ClusterName=lab\nPartitionName=debug UnknownJob=refuse\nNodeName=n1 MaxLanes=2\n"


@pytest.fixture
def salus(tmp_path, capsys, monkeypatch):
    """Runs salus with @ replaced by the path of a configuration file; returns exit code, stdout and stderr."""
    monkeypatch.delenv("SALUS_CONF", raising=False)

    def call(text: str | None, *arguments: str):
        path = tmp_path / "salus.conf"
        if text is not None:
            path.write_text(text)
        code = run(app, "salus", [str(path) if argument == "@" else argument for argument in arguments])
        output = capsys.readouterr()
        return code, output.out.replace(f"{tmp_path}/", ""), output.err.replace(f"{tmp_path}/", "")

    return call


def test_check_reports_the_number_of_values_in_a_valid_file(salus):
    assert salus(GOOD, "config", "check", "@") == (
        0,
        "salus.conf: ok, 3 values set in 2 records and 1 file\n",
        "",
    )


def test_check_reports_all_findings_and_exits_with_1(salus):
    code, out, err = salus(BAD, "config", "check", "@")
    assert code == 1
    assert out.splitlines() == [
        "salus.conf:1: MaxLane: unknown key; did you mean MaxLanes?",
        "salus.conf:2: Policy: 'srft' is not one of fifo, srtf, pack, fair, priority; did you mean srtf?",
    ]
    assert err == "salus: config check: salus.conf: 2 findings; fix all of them\n"


def test_check_prints_json(salus):
    code, out, _ = salus(BAD, "config", "check", "--json", "@")
    document = json.loads(out)
    assert code == 1
    assert document["ok"] is False
    assert [(row["line"], row["key"], row["nearest"]) for row in document["findings"]] == [
        (1, "MaxLane", "MaxLanes"),
        (2, "Policy", None),
    ]
    code, out, _ = salus(GOOD, "config", "check", "--json", "@")
    assert code == 0
    assert json.loads(out)["findings"] == []


def test_an_unreadable_file_exits_with_2(salus):
    code, out, err = salus(None, "config", "check", "@")
    assert (code, out) == (2, "")
    assert err == "salus: configuration: salus.conf: No such file or directory; name another with -f\n"


def test_the_file_may_be_named_before_the_command_or_by_the_environment(salus, monkeypatch, tmp_path):
    assert salus(BAD, "-f", "@", "config", "check")[0] == 1
    monkeypatch.setenv("SALUS_CONF", str(tmp_path / "salus.conf"))
    assert salus(BAD, "config", "check")[0] == 1
    assert salus(BAD, "config", "show")[0] == 1


def test_show_names_the_origin_of_each_value(salus):
    _, out, _ = salus(GOOD, "config", "show", "--origin", "-P", "@")
    lines = out.splitlines()
    assert lines[0] == "Key|Value|Record|Origin"
    assert "ClusterName|lab||salus.conf:1" in lines
    assert "MaxLanes|4||default" in lines
    assert "MaxLanes|2|NodeName=n1|salus.conf:3" in lines


def test_show_prints_the_values_of_one_node_or_partition(salus):
    assert "MaxLanes|2|NodeName=n1" in salus(GOOD, "config", "show", "-P", "--node", "n1", "@")[1].splitlines()
    rows = salus(GOOD, "config", "show", "-P", "--partition", "debug", "@")[1].splitlines()
    assert "UnknownJob|refuse|PartitionName=debug" in rows


def test_show_prints_a_table_or_json(salus):
    table = salus("ClusterName=lab\n", "config", "show", "@")[1]
    assert table.splitlines()[0].split() == ["Key", "Value"]
    rows = json.loads(salus(GOOD, "config", "show", "--json", "@")[1])
    assert {"key": "ClusterName", "value": "lab", "record": "", "origin": "salus.conf:1"}.items() <= rows[0].items()


def test_show_refuses_an_invalid_file(salus):
    code, out, err = salus(BAD, "config", "show", "@")
    assert (code, out) == (1, "")
    assert "salus.conf:1: MaxLane" in err


def test_explain_describes_a_key_and_its_values(salus):
    code, out, _ = salus(GOOD, "config", "show", "--explain", "maxlanes", "@")
    assert code == 0
    assert out.startswith("MaxLanes: ")
    assert "NodeName=n1: 2 (salus.conf:3)" in out
    document = json.loads(salus(GOOD, "config", "show", "--explain", "MaxLanes", "--json", "@")[1])
    assert [value["value"] for value in document["values"]] == ["4", "2"]


def test_explain_exits_with_3_for_an_unknown_key(salus):
    assert salus(GOOD, "config", "show", "--explain", "maxlane", "@") == (
        3,
        "",
        "salus: config show: maxlane: unknown key; did you mean MaxLanes?\n",
    )
    assert salus(GOOD, "config", "show", "--explain", "zzzzz", "@")[2].endswith("unknown key\n")


def test_template_prints_the_shipped_file(salus):
    assert salus(None, "config", "show", "--template")[1] == template_text()


def test_version_and_help_are_printed_and_an_unknown_command_exits_with_2(salus):
    assert salus(None, "--version")[1].startswith("salus 0.")
    assert "config" in salus(None, "--help")[1]
    assert salus(None, "confg")[0] == 2


def test_without_a_file_check_fails_and_show_prints_defaults(salus, monkeypatch):
    monkeypatch.setattr("cli.site.config.locate", lambda _: None)
    code, _, err = salus(None, "config", "check")
    assert code == 2
    assert "no file" in err
    assert salus(None, "config", "show")[0] == 0
