"""`salus simulate`, as a user calls it."""

import json

import pytest

from cli.entry import run
from cli.main import app


@pytest.fixture
def salus(capsys):
    """Runs `salus simulate` and returns exit code, stdout and stderr."""

    def call(*arguments):
        code = run(app, "salus", ["simulate", *map(str, arguments)])
        output = capsys.readouterr()
        return code, output.out, output.err

    return call


def test_json_includes_everything_that_the_figures_depend_on(salus):
    code, out, _ = salus("--workload", "switch", "--policy", "srtf,priority", "--json")
    result = json.loads(out)
    assert code == 0
    names = [entry["name"] for entry in result["policies"]]
    assert names == ["srtf", "priority", "exclusive", "exclusive-sjf", "peak"]
    assert all(entry["gpus_needed"] >= 1 and entry["average_completion_s"] > 0 for entry in result["policies"])
    (workload,) = result["workloads"]
    assert workload["parameters"]["short_model"] == "alexnet_100"
    assert workload["setting"]["shard_unit_bytes"] == 16 << 20
    assert workload["setting"]["headroom_percent"] == 0
    assert workload["setting"]["lane_reserve_is_auto"] is True
    assert any("without gain" in caveat for caveat in workload["caveats"])


def test_headroom_is_charged_as_admission_charges_it(salus, tmp_path):
    """Without headroom two jobs fit on one device; with headroom each needs its own."""
    path = tmp_path / "jobs.csv"
    path.write_text("submit_s,persistent_mb,ephemeral_mb,iteration_ms,iterations\n" + "0,480,64,100,100\n" * 2)
    needed = {}
    for percent in ("0", "10"):
        options = ("--gpu-memory", "1G", "--lane-reserve", "64M", "--headroom", percent)
        _, out, _ = salus("--workload", path, "--policy", "fifo", *options, "--json")
        needed[percent] = json.loads(out)["policies"][0]["gpus_needed"]
    assert needed == {"0": 1, "10": 2}


def test_the_table_prints_parameters_and_caveats(salus):
    code, out, err = salus("--workload", "switch", "--policy", "srtf")
    assert code == 0
    assert "context 0 MiB; MB of the published table read as MiB" in out
    assert "exclusive-sjf" in out
    assert "- srtf knows each job's remaining time exactly" in out
    assert err == ""


def test_other_seeds_give_a_spread(salus):
    code, out, _ = salus("-w", "paper", "--jobs", 10, "-p", "srtf", "--seeds", 4, "--json")
    result = json.loads(out)
    assert code == 0
    assert result["spread_seeds"] == 4
    (srtf,) = [row for row in result["spread"] if row["name"] == "srtf"]
    ordered = [srtf[key] for key in ("minimum", "first_quartile", "median", "third_quartile", "maximum")]
    assert ordered == sorted(ordered)
    assert "Gain over 4 other seeds" in salus("-w", "paper", "--jobs", 10, "-p", "srtf", "--seeds", 4)[1]


def test_tables_of_jobs_and_of_pair_speeds_are_read(salus, tmp_path):
    jobs, speeds = tmp_path / "jobs.csv", tmp_path / "speeds.csv"
    jobs.write_text("submit_s,model,length_s\n0,vgg11_25,100\n0,vgg11_25,100\n")
    speeds.write_text("model,beside,speed\nvgg11_25,vgg11_25,0.8\n")
    _, out, _ = salus("-w", jobs, "-p", "pack", "--pair-speed", speeds, "--json")
    assert json.loads(out)["policies"][0]["makespan_s"] == pytest.approx(125, rel=0.01)


def test_a_sacct_file_is_read(salus, tmp_path):
    path = tmp_path / "history.txt"
    path.write_text("JobID|Submit|ElapsedRaw|AllocTRES\n7|100|90|gres/gpu=1\n")
    code, out, _ = salus("--from-sacct", path, "-p", "fair", "--gpus", 2, "--json")
    result = json.loads(out)["workloads"][0]
    assert code == 0
    assert result["setting"]["turns_per_job"] == 20
    assert "memory of 1 of 1 jobs is not in the file; drawn from published models, seed 1" in result["caveats"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "use either --workload"),
        (("-w", "paper", "--from-sacct", "x"), "use either --workload"),
        (("-w", "papers"), "no built-in workload of that name"),
        (("-w", "none.csv"), "No such file"),
        (("-w", "switch", "-p", "fare"), "unknown"),
        (("-w", "switch", "--gpu-memory", "16X"), "--gpu-memory"),
        (("-w", "switch", "--gpu-memory", "1G"), "jobs fit no device"),
        (("-w", "switch", "--lane-reserve", "some"), "--lane-reserve"),
        (("-w", "switch", "--lane-reserve", "16G"), "lane reserve"),
        (("-w", "paper", "--load", "heavy"), "--load heavy"),
        (("-w", "x.csv", "--load", "1"), "built-in workloads only"),
        (("-w", "switch", "--load", "1"), "leave out --load"),
        (("-w", "inference", "--jobs", "1"), "leave out --jobs"),
        (("-w", "switch", "--gpus", "0"), "--gpus"),
        (("-w", "switch", "--policy", ","), "at least one policy"),
    ],
)
def test_invalid_usage_prints_one_message_and_exits_with_2(salus, arguments, message):
    code, out, err = salus(*arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert "Traceback" not in err
