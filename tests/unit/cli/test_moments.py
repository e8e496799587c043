"""Every form of a time that sacct accepts is parsed, and nothing else is accepted."""

import time
from collections.abc import Iterator
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.output.moments import format_duration, format_moment, parse_moment
from nodedaemon.core.errors import RequestError
from nodedaemon.core.types import SECOND_NS


@pytest.fixture(autouse=True)
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).astimezone().timestamp()) * SECOND_NS


NOW = "2026-11-16T13:37:42"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("10:05", "2026-11-16T10:05:00"),
        ("10:05:07", "2026-11-16T10:05:07"),
        ("3:05pm", "2026-11-16T15:05:00"),
        ("12:00 AM", "2026-11-16T00:00:00"),
        ("1101", "2026-11-01T00:00:00"),
        ("110125", "2025-11-01T00:00:00"),
        ("11/01", "2026-11-01T00:00:00"),
        ("11/01/25", "2025-11-01T00:00:00"),
        ("11.01.2025", "2025-11-01T00:00:00"),
        ("11/01-10:30", "2026-11-01T10:30:00"),
        ("2026-07-01", "2026-07-01T00:00:00"),
        ("2026-07-01T08:09", "2026-07-01T08:09:00"),
        ("2026-07-01t08:09:10", "2026-07-01T08:09:10"),
        ("2026-07-01 08:09", "2026-07-01T08:09:00"),
        ("today", "2026-11-16T00:00:00"),
        ("midnight", "2026-11-16T00:00:00"),
        ("elevenses", "2026-11-16T11:00:00"),
        ("Noon", "2026-11-16T12:00:00"),
        ("fika", "2026-11-16T15:00:00"),
        ("teatime", "2026-11-16T16:00:00"),
        ("now", "2026-11-16T13:37:42"),
        ("now-42", "2026-11-16T13:37:00"),
        ("now+60seconds", "2026-11-16T13:38:42"),
        ("now-7minutes", "2026-11-16T13:30:42"),
        ("now-2hours", "2026-11-16T11:37:42"),
        ("now-2h", "2026-11-16T11:37:42"),
        ("now-1day", "2026-11-15T13:37:42"),
        ("now+1weeks", "2026-11-23T13:37:42"),
    ],
)
def test_each_form_of_sacct_is_parsed(text: str, meant: str) -> None:
    assert parse_moment(text, datetime.fromisoformat(NOW).astimezone()) == at(meant)


def test_a_summer_day_has_its_own_offset() -> None:
    now = datetime.fromisoformat(NOW).astimezone()
    assert parse_moment("2026-07-01", now) - parse_moment("2026-06-30", now) == 86_400 * SECOND_NS
    assert parse_moment("uts=1782856800", now) == parse_moment("2026-07-01", now)


@pytest.mark.parametrize("text", ["", "yesterdayish", "25:00", "1332", "2026-13-01", "now-2fortnights", "10:5", "now-"])
def test_an_invalid_time_is_refused_with_the_valid_forms(text: str) -> None:
    with pytest.raises(RequestError, match="invalid time"):
        parse_moment(text, datetime.fromisoformat(NOW).astimezone())


@given(st.text(max_size=30))
def test_any_text_is_a_time_or_a_request_error(text: str) -> None:
    try:
        assert isinstance(parse_moment(text, datetime.fromisoformat(NOW).astimezone()), int)
    except RequestError:
        return


def test_slurm_time_format_is_followed() -> None:
    moment, now = at("2026-11-16T09:00:00"), datetime.fromisoformat(NOW).astimezone()
    assert format_moment(moment) == "2026-11-16T09:00:00"
    assert format_moment(moment, "relative", now) == "09:00:00"
    assert format_moment(at("2026-11-15T09:00:00"), "relative", now) == "Ystday 09:00"
    assert format_moment(moment, "%d.%m.%y") == "16.11.26"
    assert format_moment(None) == "Unknown"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "00:00:00"), (59, "00:00:59"), (86_399, "23:59:59"), (90_061, "1-01:01:01")]
)
def test_durations_are_printed_as_in_sacct(seconds: int, text: str) -> None:
    assert format_duration(seconds * SECOND_NS) == text
