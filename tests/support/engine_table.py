"""Scenario tables: limits and jobs go in, decisions in order of time come out.

A `Row` is a job with iterations of one length. `play` runs the rows in virtual time and writes each decision as
`<milliseconds> <what>`. Confirmations arrive at once; time passes only while iterations run.
"""

from __future__ import annotations

from dataclasses import dataclass

from nodedaemon.core import commands as cmd
from nodedaemon.core import events as ev
from nodedaemon.core.types import MIB, MILLISECOND_NS, DeviceLimits, Domain, JobClass, SessionId
from tests.support.engine_world import World


@dataclass(frozen=True)
class Row:
    """A job: its user, arrival and memory, and how many iterations of which length it runs before it leaves."""

    session: int
    user: str
    at_ms: int
    persistent_mib: int
    ephemeral_mib: int
    iteration_ms: int
    iteration_count: int
    job_class: JobClass = JobClass.NORMAL
    weight: int = 1

    @property
    def length_ns(self) -> int:
        return self.iteration_ms * MILLISECOND_NS


def describe(command: cmd.Command) -> str | None:
    """The decision in words, or None for commands that only carry numbers for the executor (limits, wake-ups)."""
    match command:
        case cmd.AdmitSession(session):
            return f"admit {session}"
        case cmd.OpenLane(lane, _, domain, size_bytes):
            return f"open lane {lane} of {domain.removeprefix('user:')}, {size_bytes // MIB} MiB"
        case cmd.ReleaseLane(lane):
            return f"release lane {lane}"
        case cmd.CloseLane(lane):
            return f"close lane {lane}"
        case cmd.BindSession(session, lane):
            return f"bind {session} to lane {lane}"
        case cmd.Grant(session, lane):
            return f"grant {session} in lane {lane}"
        case cmd.Revoke(session, _, None):
            return f"revoke {session}"
        case cmd.Revoke(session, _, successor):
            return f"revoke {session} for {successor}"
        case cmd.EndSession(session) | cmd.WarnSession(session):
            return f"{'end' if isinstance(command, cmd.EndSession) else 'warn'} {session}"
    return None


class Play:
    """One run of a table. `happenings` are additional events, by their time in milliseconds."""

    def __init__(self, limits: DeviceLimits, rows: list[Row], happenings: dict[int, list[ev.Event]]) -> None:
        self.world = World(limits)
        self.rows = {SessionId(row.session): row for row in rows}
        self.coming = sorted(rows, key=lambda row: (row.at_ms, row.session))
        self.happenings = dict(sorted(happenings.items()))
        self.ends_ns: dict[SessionId, int] = {}
        self.left = {SessionId(row.session): row.iteration_count for row in rows}
        self.asked: set[SessionId] = set()
        self.stopped: set[SessionId] = set()
        self.decisions: list[str] = []
        self._seen = len(self.world.commands)

    def note(self) -> None:
        self.world.confirm_all()
        for session in sorted(self.world.admitted - self.asked):
            self.asked.add(session)
            self.world.want(session)
            self.world.confirm_all()
        for command in self.world.commands[self._seen :]:
            text = describe(command)
            if text is not None:
                self.decisions.append(f"{self.world.now_ns // MILLISECOND_NS} {text}")
        self._seen = len(self.world.commands)
        for session in self.world.grants:
            if session not in self.stopped:
                self.ends_ns.setdefault(session, self.world.now_ns + self.rows[session].length_ns)

    def moment_ns(self) -> int | None:
        moments = list(self.ends_ns.values())
        moments += [row.at_ms * MILLISECOND_NS for row in self.coming[:1]]
        moments += [at_ms * MILLISECOND_NS for at_ms in self.happenings]
        moments += [] if self.world.wake_ns is None else [self.world.wake_ns]
        return min(moments, default=None)

    def run(self) -> list[str]:
        while (now_ns := self.moment_ns()) is not None:
            self.world.now_ns = now_ns
            if self.world.wake_ns is not None and self.world.wake_ns <= now_ns:
                self.world.tick()
                self.note()
            for session in sorted(one for one, end_ns in self.ends_ns.items() if end_ns == now_ns):
                self.end_iteration(session)
            while self.coming and self.coming[0].at_ms * MILLISECOND_NS == now_ns:
                self.arrive(self.coming.pop(0))
            for event in self.happenings.pop(now_ns // MILLISECOND_NS, []):
                self.happen(event)
        return self.decisions

    def arrive(self, row: Row) -> None:
        domain = Domain(f"user:{row.user}")
        self.world.arrive(
            row.session, row.persistent_mib, row.ephemeral_mib, domain=domain, job_class=row.job_class,
            weight=row.weight, remaining_ns=row.length_ns * row.iteration_count,
        )  # fmt: skip
        self.note()

    def happen(self, event: ev.Event) -> None:
        if isinstance(event, ev.SessionStopped):
            # Its iteration ends only after it continues. How much of it is left does not matter to the engine.
            self.stopped.add(event.session)
            self.ends_ns.pop(event.session, None)
        elif isinstance(event, ev.SessionContinued):
            self.stopped.discard(event.session)
        self.world.send(event)
        self.note()

    def end_iteration(self, session: SessionId) -> None:
        del self.ends_ns[session]
        self.left[session] -= 1
        if self.left[session] == 0:
            self.decisions.append(f"{self.world.now_ns // MILLISECOND_NS} done {session}")
            self.world.leave(session)
        else:
            self.world.boundary(session, hands_over=False)
        self.note()


def play(limits: DeviceLimits, *rows: Row, happenings: dict[int, list[ev.Event]] | None = None) -> list[str]:
    """Run the table to its end and return every decision."""
    return Play(limits, list(rows), happenings or {}).run()


def turns(decisions: list[str]) -> list[str]:
    """Only the decisions about turns: grants, revokes and the ends of jobs."""
    return [one for one in decisions if one.split()[1] in ("grant", "revoke", "done", "end", "warn")]
