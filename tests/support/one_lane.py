"""A real salusd with one lane, for tests of what happens in that lane.

It is observed through what salusd shows to anybody: status, journal, log and the gate pages of its sessions.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from nodedaemon.core import events
from nodedaemon.service.journal.dispatcher import replay
from nodedaemon.service.journal.segments import EventRecord, NoteRecord, decode_event, read_journal
from nodedaemon.service.journal.state import EndNote, Note, SessionNote, decode_note
from nodedaemon.service.sessions.gate_memory import GatePage
from tests.support.lane_session import SessionProcess
from tests.support.salusd import Salusd, wait_until

#: A grant ends at a boundary only: no session is ever idle or hung. Sessions of one class take turns.
DEFAULTS = {
    "MaxLanes": "1",
    "Policy": "priority",
    "IdleRelease": "1:00:00",
    "HangTimeout": "2:00:00",
    "LogFormat": "json",
}

EventType = TypeVar("EventType", bound=events.SessionEvent)


class OneLaneDaemon(Salusd):
    """`keys` are keys of salus.conf."""

    def __init__(self, memory: str = "1G", **keys: str) -> None:
        super().__init__(memory=memory, config="\n".join(f"{key}={value}" for key, value in (DEFAULTS | keys).items()))

    def session(self, pid: int) -> dict[str, Any]:
        """The status of the process's session; empty if it has none."""
        return next((one for one in self.status()["sessions"] if one["pid"] == pid), {})

    def wait_state(self, pid: int, *states: str) -> dict[str, Any]:
        """Wait until the engine has the session of that process in one of these states. Returns its status."""

        def find() -> dict[str, Any]:
            session = self.session(pid)
            return session if session.get("state") in states else {}

        what = f"the session of process {pid} is {' or '.join(states)}"
        found: dict[str, Any] = wait_until(find, what, self.describe)
        return found

    def wait_empty(self) -> None:
        """Wait until no session and no lane is left."""
        wait_until(
            lambda: not (status := self.status())["sessions"] and not status["lanes"],
            "all sessions and lanes are gone",
            self.describe,
        )

    def lane(self) -> dict[str, Any]:
        (lane,) = self.status()["lanes"]
        found: dict[str, Any] = lane
        return found

    def events(self, kind: type[EventType], session: int) -> list[EventType]:
        """The events of that kind that the journal has of a session."""
        decoded = (decode_event(record) for record in self._records() if isinstance(record, EventRecord))
        return [event for event in decoded if isinstance(event, kind) and event.session == session]

    def attached_sessions(self) -> dict[int, int]:
        """Every session that a process has attached to since the journal began, with its pid."""
        notes = [note for note in self._notes() if isinstance(note, SessionNote)]
        return {note.session: note.process.pid for note in notes if note.process.pid}

    def _notes(self) -> Iterator[Note]:
        return (decode_note(record.payload) for record in self._records() if isinstance(record, NoteRecord))

    def _records(self) -> Iterator[EventRecord | NoteRecord]:
        for segment in read_journal(self.state / "journal"):
            yield from segment.records

    def attached_session(self, pid: int) -> int:
        """The session to which that process has attached; the last one, because pids are used again."""
        return max(session for session, attached_pid in self.attached_sessions().items() if attached_pid == pid)

    def end_reason(self, session: int) -> str:
        """Why the session ends; empty if it does not."""
        notes = [note for note in self._notes() if isinstance(note, EndNote) and note.session == session]
        return notes[-1].reason if notes else ""

    def iteration_count(self, session: int) -> int:
        """The iterations of a session that has ended."""
        self.wait_empty()
        reports = [*self.events(events.GrantReturned, session), *self.events(events.SessionLeft, session)]
        return sum(report.iteration_count for report in reports)

    def wait_recorded(self) -> None:
        """Wait until no session is left and all records of their usage are in the database."""
        self.wait_empty()
        self.wait_for(lambda status: not status["daemon"]["spool_records"], "all records are in the database")

    def query(self, statement: str, *parameters: object) -> list[dict[str, Any]]:
        with contextlib.closing(sqlite3.connect(self.database)) as database:
            database.row_factory = sqlite3.Row
            return [dict(row) for row in database.execute(statement, parameters)]

    def faults(self, session: int) -> list[dict[str, Any]]:
        """The faults that a session reported, as the log has them."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"].startswith("job reports") and line.get("session") == session]

    def wait_faults(self, session: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = wait_until(lambda: self.faults(session), "a fault is reported", self.describe)
        return found

    def replay_mismatch_count(self) -> int:
        """States that a replay of the journal does not reproduce."""
        return sum(replay(segment).mismatch_count for segment in read_journal(self.state / "journal"))

    def describe(self) -> str:
        """The status and the end of the log, for the message of a test that fails."""
        status = self.status()
        return "\n".join([*map(str, [*status["lanes"], *status["sessions"]]), self.log_tail()])


#: A daemon and two of its sessions.
Peers = tuple[OneLaneDaemon, SessionProcess, SessionProcess]


def open_gate_page(pid: int) -> GatePage:
    """The gate page of a session process, through the descriptor that libsalus keeps of it."""
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        if entry.readlink().name.startswith("memfd:salus-gate"):
            return GatePage(os.open(entry, os.O_RDWR))
    raise AssertionError(f"process {pid} has no gate page")


@contextlib.contextmanager
def lane_held(daemon: OneLaneDaemon, ephemeral_bytes: int) -> Iterator[None]:
    """A session runs in the lane meanwhile, so that others which start now wait for it together."""
    holder = SessionProcess()
    try:
        holder.attach(daemon, ephemeral_bytes=ephemeral_bytes)
        # An open entry is not idle.
        assert holder.ask("enter") == 1
        yield
        holder.ask("leave")
    finally:
        holder.close()


def hand_over(daemon: OneLaneDaemon, holder: SessionProcess, successor: SessionProcess) -> None:
    """The holder passes a boundary in another thread and waits there; then the successor holds the lane.

    The successor must be of a higher class. Otherwise it could be revoked before it has started an iteration.
    """
    successor.send("boundary")
    daemon.wait_state(successor.pid, "waiting")
    daemon.wait_state(holder.pid, "revoked")
    holder.ask("boundary_in_thread")
    assert successor.answer() == 1
    daemon.wait_state(successor.pid, "running", "revoked")
