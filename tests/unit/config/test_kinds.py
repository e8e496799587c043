"""Values of each kind, read and written."""

import pytest

from nodedaemon.config.kinds import (
    Choice,
    Count,
    FilePath,
    Names,
    Numbers,
    Percent,
    Size,
    SizeOrAuto,
    Text,
    Time,
    YesNo,
)
from nodedaemon.core.policies import POLICIES
from nodedaemon.core.types import JobClass

SECOND = 10**9


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("4096", 4096), ("16M", 16 << 20), ("10g", 10 << 30), ("1KiB", 1024), ("2TB", 2 << 40), ("7B", 7)],
)
def test_sizes(text, expected):
    assert Size().parse(text) == expected


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
def test_times(text, expected):
    assert Time().parse(text) == expected


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (Size(), "1s", "'1s' is a time; expected a size in whole units such as 16M or 10G"),
        (Size(), "1.5G", "'1.5G' is not understood; expected a size in whole units such as 16M or 10G"),
        (Size(1024, 2048), "1", "is out of range; expected 1K to 2K"),
        (
            SizeOrAuto(),
            "often",
            "'often' is not understood; expected a size in whole units such as 16M or 10G, or auto",
        ),
        (Time(), "1G", "'1G' is a size; expected a time such as 500ms, 30, 5:00, 12:00:00 or 7-00:00:00"),
        (Time(), "10%", "'10%' is a percentage; expected a time such as 500ms, 30, 5:00, 12:00:00 or 7-00:00:00"),
        (Time(0, SECOND), "2", "is out of range; expected 0s to 1s"),
        (Percent(), "10", "'10' is not understood; expected a percentage such as 10%"),
        (Percent(100), "101%", "is out of range; expected 0% to 100%"),
        (Count(1, 9), "", "has no value; expected a whole number from 1 to 9"),
        (Count(1, 9), "5:00", "'5:00' is a time; expected a whole number from 1 to 9"),
        (Count(), "\N{ARABIC-INDIC DIGIT ONE}", "expected a whole number"),
        (YesNo(), "perhaps", "'perhaps' is not understood; expected yes or no"),
        (Choice(tuple(POLICIES)), "srft", "'srft' is not one of fifo, srtf, pack, fair, priority; did you mean srtf?"),
        (Choice(tuple(POLICIES)), "zzz", "'zzz' is not one of fifo, srtf, pack, fair, priority"),
        (Names(), "a,,b", "a name in the list is empty, or contains a space, a quote or a backslash"),
        (Names(), "a,b,a", "a name is in the list twice"),
        (Numbers(9), "3-1", "the range 3-1 runs backwards"),
        (Numbers(9), "1,0-2", "a number is in the list twice"),
        (Numbers(9), "10", "is out of range; expected 0 to 9"),
        (Text(is_optional=False), "", "has no value; expected text"),
        (Text(), "a\x07", "has a quote, a backslash or an unprintable character"),
        (FilePath(), "relative", "'relative' is not understood; expected an absolute path"),
        (FilePath(), "/a\x07", "has a quote, a backslash or an unprintable character"),
        (FilePath(), "/a/%n", "has a percent sign that is not %c (cluster) or %%"),
        (FilePath(has_node=True), "/a/%x", "has a percent sign that is not %c (cluster), %n (node) or %%"),
        (FilePath(is_socket=True), "/" + 107 * "x", "is longer than the 107 bytes that a socket's address holds"),
    ],
)
def test_a_wrong_value_says_what_was_expected(kind, text, reason):
    with pytest.raises(ValueError, match=r"\w") as raised:
        kind.parse(text)
    assert reason in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (Size(), 0, "0"),
        (Size(), 1536 << 20, "1536M"),
        (Size(), 1 << 40, "1T"),
        (Size(), 1001, "1001"),
        (SizeOrAuto(), None, "auto"),
        (Time(), 0, "0s"),
        (Time(), 90 * SECOND, "00:01:30"),
        (Time(), 86400 * SECOND, "1-00:00:00"),
        (Time(), 200_000_000, "200ms"),
        (Time(), 20_000, "20us"),
        (Time(), SECOND + 1, "1.000000001s"),
        (Percent(), 10, "10%"),
        (YesNo(), True, "yes"),
        (YesNo(), False, "no"),
        (Choice(JobClass), JobClass.BEST_EFFORT, "best-effort"),
        (Names(), ("a", "b"), "a,b"),
        (Names(), (), ""),
        (Numbers(), (0, 2, 3), "0,2,3"),
        (Text(), "two words", '"two words"'),
        (FilePath(is_optional=True), "", ""),
        (FilePath(has_node=True), "/run/%c/%n/100%%", "/run/%c/%n/100%%"),
    ],
)
def test_written_values_read_back(kind, value, text):
    assert kind.write(value) == text
    assert kind.parse(text.strip('"')) == value
