"""Slurm's host lists."""

import pytest

from nodedaemon.config.hostlist import compress, expand


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu1", ("gpu1",)),
        ("gpu[01-03]", ("gpu01", "gpu02", "gpu03")),
        ("gpu[8-11]", ("gpu8", "gpu9", "gpu10", "gpu11")),
        ("gpu[1,3-4],login", ("gpu1", "gpu3", "gpu4", "login")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("a.b-c_d", ("a.b-c_d",)),
    ],
)
def test_a_list_expands_to_names_in_order(text, names):
    assert expand(text) == names


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "a name is empty"),
        ("a,,b", "a name is empty"),
        ("a[1-2", "a bracket is not closed"),
        ("a]1", "brackets do not match"),
        ("a[[1]]", "brackets do not match"),
        ("a[]", "is not a list of numbers"),
        ("a[x-y]", "is not a list of numbers"),
        ("a[3-1]", "runs backwards"),
        ("a[0-999999999999]", "more than 65536 names"),
        ("a[0-999]b[0-999]", "more than 65536 names"),
        ("a[1-2],a2", "a2 is named twice"),
        ("a/b", "letters, digits"),
    ],
)
def test_a_wrong_list_says_why(text, reason):
    with pytest.raises(ValueError, match=r"\w") as raised:
        expand(text)
    assert reason in str(raised.value)


def test_compress_writes_ranges_and_keeps_zero_padding():
    names = ["gpu03", "gpu01", "gpu02", "gpu7", "login", "gpu05", "gpu05"]
    assert compress(names) == "login,gpu[01-03,05],gpu7"
