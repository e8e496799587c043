"""Tables of Slurm with a random delimiter: a cell may contain anything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodedaemon.core.errors import OperatingError
from nodedaemon.wire.delimited import new_delimiter, split_rows, squeue_format, squeue_rows

CELLS = st.text("ab|\n\r\v\x1f\u2028 x0", max_size=8)


def printed(rows: list[list[str]], delimiter: str) -> str:
    return "".join("".join(cell + delimiter for cell in row) + "\n" for row in rows)


@given(st.lists(st.lists(CELLS, min_size=3, max_size=3)))
def test_rows_are_read_as_they_were_printed(rows: list[list[str]]) -> None:
    delimiter = new_delimiter()
    assert split_rows(printed(rows, delimiter), delimiter, 3) == rows


def test_no_two_delimiters_are_the_same_and_none_begins_like_a_width() -> None:
    delimiters = {new_delimiter() for _ in range(100)}
    assert len(delimiters) == 100
    assert not any(delimiter[0].isdigit() for delimiter in delimiters)


@pytest.mark.parametrize("text", ["garbage", "aXbX", "aXbXcX\ndX", "aXbXcXdXeXfX\n", "aXbXcX\nd"])
def test_a_table_that_is_cut_off_or_has_other_columns_is_not_read(text: str) -> None:
    with pytest.raises(OperatingError):
        split_rows(text, "X", 3)


def test_cells_of_squeue_are_read_without_the_blanks_that_fill_them_up() -> None:
    columns = (("JobID", 8), ("admin_comment", 20))
    assert squeue_format(columns, "X") == "--Format=JobID:8X,admin_comment:20X"
    assert squeue_rows("7       X a\nb              X\n8       X(null)              X\n", columns, "X") == [
        ["7", "a\nb"],
        ["8", ""],
    ]
