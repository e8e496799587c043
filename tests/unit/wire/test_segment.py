"""A segment of admin_comment is read as it was written, and Python, the Prolog and Lua agree on its format."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodedaemon.drivers.slurm import SALUS_TRES
from nodedaemon.wire.segment import (
    SEGMENT_MARK,
    SUMMARY_MARK,
    AdmissionSegment,
    find_segment,
    format_segment,
    merge_segment,
    merge_word,
    parse_segment,
)
from tests.support.lua import JobSubmit

HOOKS = Path(__file__).parents[3] / "slurm_plugin" / "hooks"
SETTINGS = """return { socket = "/nonexistent/salus.sock", timeout_s = 0.5, timeouts_max = 3, pause_s = 10,
  on_loss = "exclusive", whole_device = "shard:48" }"""

OUR_WORDS = re.compile(r"(?<!\S)salus(?:-sum)?:\S*", re.ASCII)
NAMES = st.text("abcdefghijklmnop:0123456789+._-", min_size=1, max_size=20)
SIZES = st.none() | st.integers(0, 2**50)
SEGMENTS = st.builds(
    AdmissionSegment, admission=NAMES, persistent_bytes=SIZES, ephemeral_bytes=SIZES, shard_count=SIZES,
    kind=st.sampled_from(["", "shared", "exclusive"]), signature=NAMES, time_s=SIZES, throttle=SIZES,
)  # fmt: skip
WORDS = st.sampled_from(
    [SEGMENT_MARK, f"{SEGMENT_MARK};", f"{SEGMENT_MARK};P=7", "salus:10;P=7", "salus:2;P=7", f"x{SEGMENT_MARK};P=7",
     f"{SUMMARY_MARK};held=3", "JS1:H4sI==", "é\u00a0ü", "%1", "\\1", "\u2028"]
) | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)  # fmt: skip
BLANKS = st.sampled_from([" ", "  ", "\t", "\n", "\x0b\f\r", "\x1c", "\u00a0"])
COMMENTS = st.lists(st.tuples(BLANKS, WORDS)).map(lambda parts: "".join(blank + word for blank, word in parts))


@given(SEGMENTS, COMMENTS)
def test_a_segment_is_read_as_it_was_written_and_other_words_stay(segment, comment):
    merged = merge_segment(comment, segment)
    assert parse_segment(merged) == segment
    assert merge_segment(merged, segment) == merged
    assert find_segment(merged) == format_segment(segment)
    assert merged.split(format_segment(segment))[0].rstrip() in comment.rstrip()


@pytest.mark.parametrize(
    ("comment", "segment"),
    [
        ("", None),
        ("other:1;x=2", None),
        ("salus:2;P=10", None),
        ("salus:10;P=10", None),
        ("note salus:1;adm=9;P=10;K=shared;S=a=b more", {"adm": "9", "P": 10, "K": "shared", "S": "a=b"}),
        ("salus:1;adm=a;Z=9;P=7;E=x;N=²;P=8", {"adm": "a", "P": 8}),
    ],
)
def test_unknown_keys_and_invalid_numbers_of_a_segment_are_left_out(comment, segment):
    found = parse_segment(comment)
    assert (found and to_keys(found)) == segment


def to_keys(segment):
    pairs = (pair.split("=", 1) for pair in format_segment(segment).split(";")[1:])
    return {key: int(value) if key in "PENTA" else value for key, value in pairs}


def test_the_keys_of_a_comment_that_sacctmgr_stored_are_read_in_lower_case():
    stored = merge_segment("", AdmissionSegment(persistent_bytes=5, ephemeral_bytes=6, signature="name:X")).lower()
    assert parse_segment(stored) == AdmissionSegment()
    segment = parse_segment(stored, is_lower_case=True)
    assert (segment.persistent_bytes, segment.ephemeral_bytes) == (5, 6)


@pytest.fixture(scope="module")
def prolog():
    sys.path.insert(0, str(HOOKS))
    spec = importlib.util.spec_from_file_location("prolog", HOOKS / "prolog.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path[:] = [entry for entry in sys.path if entry != str(HOOKS)]
    return module


@pytest.fixture(scope="module")
def job_submit(tmp_path_factory):
    script = JobSubmit(tmp_path_factory.mktemp("lua"), SETTINGS)
    yield script
    script.close()


@given(comment=COMMENTS)
def test_the_prolog_finds_the_same_segment(prolog, comment):
    assert prolog.find_segment(comment) == find_segment(comment)


@pytest.mark.parametrize(
    "tres", ["gres:salus:1,gres:shard:3", "gres/gpu:1,gres/salus=1", "gres:salus", "gres/salusx", "salus", "N/A", ""]
)
def test_the_prolog_and_salusd_agree_on_what_a_share_is(prolog, tres):
    assert prolog.has_salus(tres) == bool(SALUS_TRES.search(tres))


@given(comment=COMMENTS)
def test_lua_writes_the_same_comment(job_submit, comment):
    answer = job_submit.submit(tres_per_node="gres:salus:1", admin_comment=comment)
    assert answer["code"] == 0, answer
    assert answer["record"]["tres_per_node"] == "gres:salus:1,gres:shard:48"
    kept = OUR_WORDS.sub("", comment)
    assert answer["record"]["admin_comment"] == merge_word(kept, SEGMENT_MARK, f"{SEGMENT_MARK};K=lost")


@given(comment=COMMENTS)
def test_lua_removes_our_words_from_the_comment_of_every_job(job_submit, comment):
    answer = job_submit.submit(admin_comment=comment)
    assert (answer["code"], answer["record"]["admin_comment"]) == (0, OUR_WORDS.sub("", comment))
    assert not find_segment(answer["record"]["admin_comment"])
