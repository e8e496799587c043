"""Slurm's job description, read and written in the spellings of all releases."""

import pytest

from nodedaemon.core.types import GIB, KIB, MIB
from slurm_plugin.admitd.jobdesc import parse_size, parse_sizes, parse_time, read_submission
from slurm_plugin.slurm.tres import Tres, charged_tres, parse_tres


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gres:salus:1", [Tres("salus", count=1)]),
        ("gres/salus:1", [Tres("salus", count=1)]),
        ("gres/salus=1", [Tres("salus", count=1)]),
        ("gres:salus", [Tres("salus")]),
        ("gres:gpu:a100:2,gres:shard:97", [Tres("gpu", "a100", 2), Tres("shard", count=97)]),
        ("gres/shard:10K", [Tres("shard", count=10_240)]),
        ("gres/gpu:tesla", [Tres("gpu", "tesla")]),
        ("", []),
    ],
)
def test_both_spellings_of_a_request_are_read(text, expected):
    assert parse_tres(text) == expected


@pytest.mark.parametrize("mark", [":", "/"])
def test_a_charge_keeps_the_spelling_and_the_rest_of_the_request(mark):
    asked = f"gres{mark}salus:1,gres{mark}license:2"
    assert charged_tres(asked, 7) == f"gres{mark}salus:1,gres{mark}shard:7,gres{mark}license:2"
    assert charged_tres(f"gres{mark}salus:1,gres{mark}shard:48", 7) == f"gres{mark}salus:1,gres{mark}shard:7"
    assert charged_tres(asked, None).startswith(f"gres{mark}salus:1,gres{mark}gpu:1")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tres_per_node": "gres:salus:2"}, "salus:2"),
        ({"tres_per_node": "gres:salus:a:1"}, "salus:a:1"),
        ({"tres_per_node": "gres:salus:1,gres:gpu:1"}, "gpu and salus"),
        ({"tres_per_node": "gres/salus:1", "tres_per_job": "gres/gpu:1"}, "--gpus or --tres-per-job asks for gpu"),
        ({"tres_per_node": "gres:shard:3"}, "ask for --gres=salus:1 instead"),
        ({"tres_per_node": "gres:salus:1,gres:shard:3"}, "only Salus may set shards"),
        ({"tres_per_task": "gres/salus:1"}, "counts it per node"),
    ],
)
def test_an_impossible_request_says_what_to_do(fields, words):
    problems = read_submission(5, fields, {}).problems
    assert len(problems) == 1
    assert words in problems[0]


def test_all_problems_are_reported_at_once():
    options = {"SALUS_MEM": "x", "SALUS_TIME": "y", "SALUS_CLASS": "z", "SALUS_PROFILE": "a b"}
    assert len(read_submission(5, {"tres_per_node": "gres:salus:2"}, options).problems) == 5


def test_options_and_fields_are_read():
    options = {"SALUS_MEM": "2G,512M", "SALUS_TIME": "1:00:00", "SALUS_CLASS": "high", "SALUS_SIGNATURE": "job:ab"}
    fields = {"tres_per_node": "gres:salus:1", "partition": "a,b", "requeue": 65534}
    submission = read_submission(5, fields, options)
    assert submission.problems == ()
    assert submission.declared_bytes == (2 * GIB, 512 * MIB)
    assert submission.time_s == 3600
    assert submission.job.partitions == ("a", "b")
    assert submission.signature == "job:ab"
    assert submission.is_requeue_allowed
    assert not read_submission(5, {**fields, "requeue": 0}, options).is_requeue_allowed
    assert read_submission(5, fields, {**options, "SALUS_PROFILE": "resnet"}).signature == "name:resnet"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("300", 300 * MIB), ("2g", 2 * GIB), ("64K", 64 * KIB), ("1GiB", GIB), ("", None), ("-1", None), ("1.5G", None)],
)
def test_sizes_have_the_units_of_slurm(text, expected):
    assert parse_size(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2G", (2 * GIB, 0)), ("2G,64K", (2 * GIB, 64 * KIB)), ("1,0", (MIB, 0)), ("0,1G", None), ("2G,", None),
     (",2G", None), ("1G,1G,1G", None), ("", None)],
)  # fmt: skip
def test_declared_memory_is_one_size_or_two(text, expected):
    assert parse_sizes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30", 1800), ("1:30", 90), ("1:00:00", 3600), ("2-12", 60 * 3600), ("2-12:30:01", 60 * 3600 + 1801),
        ("x", None), ("", None), ("1:2:3:4", None),
    ],
)  # fmt: skip
def test_times_have_the_formats_of_slurm(text, expected):
    assert parse_time(text) == expected
