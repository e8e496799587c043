"""Progress is shown on a terminal only."""

import io
import sys

import pytest

from cli.output.progress import counting, progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Replaces standard error. This is not a fixture, because pytest sets its own stream before it calls the test."""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    return made


def test_a_terminal_shows_the_current_step(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = terminal(monkeypatch)
    with progress("report") as on_step:
        on_step("waits, admissions and events")
    assert "report: waits, admissions and events" in seen.getvalue()


def test_a_terminal_shows_how_much_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = terminal(monkeypatch)
    with counting("days", 4) as on_progress:
        on_progress(1)
        on_progress(3)
    assert "days" in seen.getvalue()
    assert "100%" in seen.getvalue()


def test_a_file_gets_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = io.StringIO()
    monkeypatch.setattr(sys, "stderr", kept)
    with progress("report") as on_step, counting("days", 2) as on_progress:
        on_step("jobs and usage")
        on_progress(2)
    assert kept.getvalue() == ""
