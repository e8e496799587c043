"""Every number in README and docs/benchmarks.md comes from a recorded benchmark."""

import json
import subprocess

import pytest

from tools.benchmark_plots import PLOTS, bars, drawn, steps
from tools.cited_numbers import FOLDER, PAGES, ROOT, StaleError, look_up, rendered, typed_numbers
from tools.record import layout, summary


@pytest.fixture
def tree(tmp_path):
    """A tree with one benchmark that was run three times."""
    (tmp_path / FOLDER).mkdir(parents=True)
    runs = [
        {"date": f"2026-01-0{day}T10:00:00+00:00", "commit": "abc",
         "result": {"n": 5, "by": {"srtf": {"mean_s": mean}, "fifo": {"mean_s": 3 * mean}}, "job_s": [mean, 1.0]}}
        for day, mean in ((1, 4.0), (2, 2.0), (3, 3.26))
    ]  # fmt: skip
    (tmp_path / FOLDER / "some.json").write_text(layout(summary("some", {"cores": 2}, runs)))
    return tmp_path


@pytest.mark.parametrize("page", [page for page in PAGES if (ROOT / page).exists()], ids=str)
def test_every_number_comes_from_a_recorded_benchmark(page):
    text = (ROOT / page).read_text()
    assert rendered(text) == text, f"{page}: numbers are not those of the recorded files; run: make numbers"
    assert typed_numbers(text) == [], f"{page}: numbers typed by hand; cite a recorded one (tools/cited_numbers.py)"


def leading_markers(text):
    """Lines that begin with a marker: for Markdown, a comment at the start of a line ends the paragraph."""
    return [line for line in text.splitlines() if line.lstrip().startswith("<!-- n:")]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_no_line_begins_with_a_marker(page):
    assert leading_markers((ROOT / page).read_text()) == []
    assert leading_markers("about\n<!-- n: a.b -->1<!-- /n --> s") == ["<!-- n: a.b -->1<!-- /n --> s"]


def test_every_record_has_its_benchmark_machine_date_and_commit():
    for path in sorted((ROOT / FOLDER).glob("*.json")):
        record = json.loads(path.read_text())
        assert record["bench"] == path.stem
        assert (ROOT / "tests" / "bench" / f"{path.stem}.py").is_file(), path
        assert record["machine"]["cores"] > 0, path
        assert record["last"], path
        for run in record["runs"]:
            assert run.keys() >= {"date", "commit", "headline"}, path


def git(*words):
    return subprocess.run(("git", *words), cwd=ROOT, capture_output=True, text=True, check=False)


def test_every_recorded_benchmark_ran_on_a_commit_of_this_history():
    """Anyone who doubts a number can check out the commit that was measured."""
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("not a clone with its whole history")
    for path in sorted((ROOT / FOLDER).glob("*.json")):
        for run in json.loads(path.read_text())["runs"]:
            found = git("merge-base", "--is-ancestor", run["commit"], "HEAD")
            assert found.returncode == 0, f"{path.name}: {run['commit']} is not in the history; record it again"


def test_every_plot_is_drawn_from_the_recorded_benchmarks():
    for name, content in drawn().items():
        assert (ROOT / FOLDER / name).read_text() == content, f"{name} is stale; run: make numbers"
    assert {path.name for path in (ROOT / FOLDER).glob("*.svg")} <= PLOTS.keys()


def test_a_plot_has_a_bar_or_curve_for_each_value():
    shown = bars(
        "title", "s", {"one": [(1.0, 0.5, 2.0, "#000", "1.0")], "a<b": [(3.0, 3.0, 3.0, "#000", "3.0")]}
    ).done()
    assert shown.count("<rect") == 3
    assert "a&lt;b" in shown
    assert steps("title", "s", "jobs", {"one": ([1.0, 2.0], "#000")}).done().count("<polyline") == 1


def test_a_marker_shows_the_number_of_the_recorded_file(tree):
    text = "It is <!-- n: some.median.by.srtf.mean_s .1f -->9<!-- /n --> s on <!-- n: some.date --><!-- /n -->.\n"
    wanted = text.replace(">9<", ">3.3<").replace("date --><", "date -->2026-01-03<")
    assert rendered(text, tree) == wanted
    assert rendered(wanted, tree) == wanted
    assert look_up("some.min.by.fifo.mean_s", tree) == 6.0
    assert look_up("some.count", tree) == 3


def test_a_summary_keeps_lists_of_the_last_run_only(tree):
    record = json.loads((tree / FOLDER / "some.json").read_text())
    assert record["last"]["job_s"] == [3.26, 1.0]
    assert record["median"] == {"n": 5, "by": {"srtf": {"mean_s": 3.26}, "fifo": {"mean_s": pytest.approx(9.78)}}}
    assert [run["headline"] for run in record["runs"]] == [{"n": 5}] * 3


def test_a_summary_of_one_run_has_no_median(tree):
    run = {
        "date": "2026-01-01",
        "commit": "abc",
        "result": {"gain": {"gpu": 2.0}, "job_s": list(range(60)), "by": None},
    }
    record = json.loads(layout(summary("one", {}, [run])))
    assert record["last"] == run["result"]
    assert record["runs"][0]["headline"] == {"gain": {"gpu": 2.0}}
    assert "median" not in record


def test_a_table_has_a_row_for_each_entry(tree):
    text = "<!-- table: some.last.by; Policy=@; Mean in s=mean_s .1f; Lost=lost -->\n<!-- /table -->\n"
    assert rendered(text, tree).splitlines()[1:-1] == [
        "| Policy | Mean in s | Lost |",
        "|---|---:|---:|",
        "| srtf | 3.3 | - |",
        "| fifo | 9.8 | - |",
    ]


def test_the_list_of_records_has_a_row_for_every_file(tree):
    (tree / FOLDER / "some.json").rename(tree / FOLDER / "gate.json")
    row = look_up("@recorded", tree)["gate"]
    assert (row["n"], row["ratio"], row["count"], row["commit"]) == (5, None, 3, "abc")
    assert row["about"]


def test_an_unknown_path_in_a_marker_is_found(tree):
    with pytest.raises(StaleError, match="no nope; there is: n, by"):
        rendered("<!-- n: some.last.nope -->1<!-- /n -->", tree)
    with pytest.raises(StaleError, match="make record BENCH=nosuch"):
        rendered("<!-- n: nosuch.last.n -->1<!-- /n -->", tree)
    assert rendered("<!-- n: gate.last.n -->1<!-- /n -->", tree) == "<!-- n: gate.last.n -->(not recorded)<!-- /n -->"


def test_a_number_typed_by_hand_is_found():
    text = "Ten jobs.\nIt is 3.4 times faster, 10x, and 95 % of\n| 7 | `8` |\n<!-- n: a.b -->5<!-- /n -->\n"
    assert typed_numbers(text) == ["2: 3.4", "2: 10x,", "2: 95", "3: 7"]
    names = "Debian 12, Slurm 22.05, 24.11 and 26.05, Python 3.11, p95 [a](b9.md)\n1. one\n```\n5 s\n```\n<!-- 6 -->\n"
    assert typed_numbers(names) == []
