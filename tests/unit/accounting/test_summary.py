"""The summary in AdminComment: ours is replaced, and the text of other tools stays unchanged."""

from hypothesis import given
from hypothesis import strategies as st

from accounting.reports.summary import merge_summary
from nodedaemon.wire.segment import SUMMARY_MARK

SEGMENT = f"{SUMMARY_MARK};held=10;occ=5"


def test_a_summary_is_appended_and_later_replaced_in_place() -> None:
    assert merge_summary("", SEGMENT) == SEGMENT
    assert merge_summary("JS1:H4sI==", SEGMENT) == f"JS1:H4sI== {SEGMENT}"
    assert merge_summary("salus:1;adm=a1;P=5  JS1:x", SEGMENT) == f"salus:1;adm=a1;P=5  JS1:x {SEGMENT}"
    assert merge_summary(f"a  {SUMMARY_MARK};held=1  b", SEGMENT) == f"a  {SEGMENT}  b"


@given(st.text(max_size=60))
def test_every_other_character_stays(comment: str) -> None:
    merged = merge_summary(comment, SEGMENT)
    assert SEGMENT in merged
    if SUMMARY_MARK not in comment:
        assert merged.startswith(comment)
        assert merged[len(comment) :].strip() == SEGMENT
    assert merge_summary(merged, SEGMENT) == merged
