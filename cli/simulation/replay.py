"""`salus simulate --replay JOURNAL`: repeats a daemon's journal in the engine, decision by decision.

The same events give the same commands, so a journal serves as a bug report. The replay compares its state with the
digests that the daemon wrote and checks the invariants.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from cli.entry import FailedError
from cli.output.render import write_json
from nodedaemon.core.errors import RequestError

if TYPE_CHECKING:
    from nodedaemon.core.commands import Command
    from nodedaemon.core.events import Event


@dataclass
class _Decisions:
    """Prints every event with its commands, or collects them for JSON."""

    is_json: bool
    start_ns: int | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, event: Event, now_ns: int, commands: list[Command]) -> None:
        self.start_ns = now_ns if self.start_ns is None else self.start_ns
        if self.is_json:
            rows = [{"command": type(command).__name__, **to_builtins(command)} for command in commands]
            self.rows.append({"at_ns": now_ns, "event": type(event).__name__, **to_builtins(event), "commands": rows})
            return
        print(f"{(now_ns - self.start_ns) / 1e9:12.6f}  {event}")
        for command in commands:
            print(f"{'':14}-> {command}")


def replay_journal(place: Path, *, is_json: bool, is_quiet: bool = False) -> None:
    """Print every decision of the journal at `place` (a segment or a directory), then a summary.

    Raises `FailedError` if the replay ends in a different state than the daemon's.
    """
    from nodedaemon.core.state.invariants import check
    from nodedaemon.service.journal.dispatcher import replay
    from nodedaemon.service.journal.segments import read_journal

    try:
        segments = read_journal(place)
    except OSError as error:
        raise RequestError(f"replay: {place}: {error.strerror}; name a journal file or its directory") from error
    decisions = _Decisions(is_json)
    summaries = []
    for segment in segments:
        result = replay(segment, None if is_quiet else decisions.add)
        check(result.engine)
        summaries.append(
            {
                "file": segment.path.name,
                "release": segment.head.release,
                "events": result.event_count,
                "digests": result.digest_count,
                "mismatches": result.mismatch_count,
                "damaged_records": segment.damage.record_count,
                "sessions_at_end": len(result.state.sessions),
            }
        )
    if is_json:
        write_json({"segments": summaries, "decisions": decisions.rows})
    else:
        for one in summaries:
            print(
                f"{one['file']}: {one['events']} events, {one['digests']} digests compared, {one['mismatches']} differ,"
                f" {one['damaged_records']} damaged records, {one['sessions_at_end']} sessions at the end"
            )
    if any(one["mismatches"] for one in summaries):
        raise FailedError(
            f"replay: {place}: the state differs from the daemon's; replay with the release that wrote the journal"
        )
