"""Values of each type, parsed and written."""

import pytest

from nodedaemon.config import kinds
from nodedaemon.core.policies import POLICIES
from nodedaemon.core.types import JobClass

SECOND = 10**9


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("4096", 4096), ("16M", 16 << 20), ("10g", 10 << 30), ("1KiB", 1024), ("2TB", 2 << 40), ("7B", 7)],
)
def test_a_size_has_a_binary_suffix_or_none(text, expected):
    assert kinds.Size().parse(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30", 30 * SECOND),
        ("5:00", 300 * SECOND),
        ("12:00:00", 12 * 3600 * SECOND),
        ("7-00:00:00", 7 * 86400 * SECOND),
        ("1-12", 36 * 3600 * SECOND),
        ("1-12:30", (36 * 3600 + 1800) * SECOND),
        ("500ms", SECOND // 2),
        ("0.5s", SECOND // 2),
        ("1.5ms", 1_500_000),
        ("20us", 20_000),
        ("1S", SECOND),
    ],
)
def test_a_time_is_written_as_in_slurm_or_with_a_unit(text, expected):
    assert kinds.Time().parse(text) == expected


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (kinds.Size(), "1s", "'1s' is a time; expected a size in whole units such as 16M or 10G"),
        (kinds.Size(), "1.5G", "'1.5G' is not understood; expected a size in whole units such as 16M or 10G"),
        (kinds.Size(1024, 2048), "1", "is out of range; expected 1K to 2K"),
        (
            kinds.SizeOrAuto(),
            "often",
            "'often' is not understood; expected a size in whole units such as 16M or 10G, or auto",
        ),
        (kinds.Time(), "1G", "'1G' is a size; expected a time such as 500ms, 30, 5:00, 12:00:00 or 7-00:00:00"),
        (kinds.Time(), "10%", "'10%' is a percentage; expected a time such as 500ms, 30, 5:00, 12:00:00 or 7-00:00:00"),
        (kinds.Time(0, SECOND), "2", "is out of range; expected 0s to 1s"),
        (kinds.Percent(), "10", "'10' is not understood; expected a percentage such as 10%"),
        (kinds.Percent(100), "101%", "is out of range; expected 0% to 100%"),
        (kinds.Count(1, 9), "", "has no value; expected a whole number from 1 to 9"),
        (kinds.Count(1, 9), "5:00", "'5:00' is a time; expected a whole number from 1 to 9"),
        (kinds.Count(), "\N{ARABIC-INDIC DIGIT ONE}", "expected a whole number"),
        (kinds.YesNo(), "perhaps", "'perhaps' is not understood; expected yes or no"),
        (
            kinds.Choice(tuple(POLICIES)),
            "srft",
            "'srft' is not one of fifo, srtf, pack, fair, priority; did you mean srtf?",
        ),
        (kinds.Choice(tuple(POLICIES)), "zzz", "'zzz' is not one of fifo, srtf, pack, fair, priority"),
        (kinds.Names(), "a,,b", "a name in the list is empty, or contains a space, a quote or a backslash"),
        (kinds.Names(), "a,b,a", "a name is in the list twice"),
        (kinds.Numbers(9), "3-1", "the range 3-1 runs backwards"),
        (kinds.Numbers(9), "1,0-2", "a number is in the list twice"),
        (kinds.Numbers(9), "10", "is out of range; expected 0 to 9"),
        (kinds.Text(is_optional=False), "", "has no value; expected text"),
        (kinds.Text(), "a\x07", "contains a quote, a backslash or an unprintable character"),
        (kinds.FilePath(), "relative", "'relative' is not understood; expected an absolute path"),
        (kinds.FilePath(), "/a\x07", "contains a quote, a backslash or an unprintable character"),
        (kinds.FilePath(), "/a/%n", "contains a percent sign that is not %c (cluster) or %%"),
        (kinds.FilePath(has_node=True), "/a/%x", "contains a percent sign that is not %c (cluster), %n (node) or %%"),
        (kinds.FilePath(is_socket=True), "/" + 107 * "x", "is longer than the 107 bytes that a socket's address holds"),
    ],
)
def test_a_wrong_value_says_what_was_expected(kind, text, reason):
    with pytest.raises(ValueError, match=r"\w") as raised:
        kind.parse(text)
    assert reason in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (kinds.Size(), 0, "0"),
        (kinds.Size(), 1536 << 20, "1536M"),
        (kinds.Size(), 1 << 40, "1T"),
        (kinds.Size(), 1001, "1001"),
        (kinds.SizeOrAuto(), None, "auto"),
        (kinds.Time(), 0, "0s"),
        (kinds.Time(), 90 * SECOND, "00:01:30"),
        (kinds.Time(), 86400 * SECOND, "1-00:00:00"),
        (kinds.Time(), 200_000_000, "200ms"),
        (kinds.Time(), 20_000, "20us"),
        (kinds.Time(), SECOND + 1, "1.000000001s"),
        (kinds.Percent(), 10, "10%"),
        (kinds.YesNo(), True, "yes"),
        (kinds.YesNo(), False, "no"),
        (kinds.Choice(JobClass), JobClass.BEST_EFFORT, "best-effort"),
        (kinds.Names(), ("a", "b"), "a,b"),
        (kinds.Names(), (), ""),
        (kinds.Numbers(), (0, 2, 3), "0,2,3"),
        (kinds.Text(), "two words", '"two words"'),
        (kinds.FilePath(is_optional=True), "", ""),
        (kinds.FilePath(has_node=True), "/run/%c/%n/100%%", "/run/%c/%n/100%%"),
    ],
)
def test_a_written_value_can_be_parsed_again(kind, value, text):
    assert kind.write(value) == text
    assert kind.parse(text.strip('"')) == value
