"""`salus simulate --replay`: repeats every decision and reports differences."""

import json

import pytest
from typer.testing import CliRunner

from cli.entry import FailedError
from cli.main import app
from nodedaemon.core import events
from nodedaemon.core.engine import Engine
from nodedaemon.core.errors import RequestError
from nodedaemon.core.types import MIB, DeviceId, DeviceLimits, Domain, JobId, SessionId
from nodedaemon.service.journal.dispatcher import Dispatcher
from nodedaemon.service.journal.segments import Journal
from nodedaemon.service.journal.state import DigestNote, SessionNote, ShellState

DEVICE = DeviceId("HOST-1")


@pytest.fixture
def journal(tmp_path):
    """The journal of a daemon with one device, two sessions and one grant."""
    clock = iter(range(1, 1000))
    dispatcher = Dispatcher(ShellState(Engine()), lambda: next(clock), digest_interval_count=1)
    dispatcher.journal = Journal(tmp_path, "0.1.0", "boot")
    dispatcher.journal.begin(dispatcher.snapshot)
    dispatcher.submit(events.DeviceAdded(DEVICE, DeviceLimits(64 * MIB)))
    for number in (1, 2):
        session, job = SessionId(number), JobId(str(number))
        dispatcher.note(SessionNote(session, job, DEVICE, 0, 0, 0))
        dispatcher.submit(events.SessionArrived(session, DEVICE, job, Domain("u"), 2 * MIB, 4 * MIB))
    dispatcher.submit(events.GrantWanted(SessionId(1)))
    dispatcher.submit(events.SessionLeft(SessionId(1)))
    dispatcher.submit(events.SessionReleased(SessionId(1)))
    # The engine refuses this event. A replay must refuse it as well and continue.
    dispatcher.submit(events.GrantWanted(SessionId(99)))
    return dispatcher


def test_every_decision_is_printed_and_every_digest_agrees(journal, tmp_path):
    journal.journal.close()
    result = CliRunner().invoke(app, ["simulate", "--replay", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "AdmitSession(session=1" in result.output
    assert "0 differ" in result.output
    answer = json.loads(CliRunner().invoke(app, ["simulate", "--replay", str(tmp_path), "--json"]).output)
    assert answer["segments"][0]["events"] == 7
    assert answer["segments"][0]["mismatches"] == 0
    assert answer["decisions"][1]["commands"][0]["command"] == "AdmitSession"


def test_a_state_that_differs_is_a_failure(journal, tmp_path):
    journal.note(DigestNote("another state"))
    journal.journal.close()
    result = CliRunner().invoke(app, ["simulate", "--replay", str(tmp_path), "-P"])
    assert isinstance(result.exception, FailedError)


def test_a_journal_that_cannot_be_read_is_a_request_error(tmp_path):
    result = CliRunner().invoke(app, ["simulate", "--replay", str(tmp_path / "none")])
    assert isinstance(result.exception, RequestError)
    assert "No such file" in str(result.exception)
