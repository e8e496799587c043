"""`salus status`: devices, lanes and sessions. `salus why`: why a job is not running, and what would change that."""

from typing import Annotated

import msgspec
import typer

from cli.entry import NotFoundError, UnreachableError
from cli.node.queue import ask_queue_why, show_queue
from cli.output.render import Cell, Column, Form, form_of, write_json, write_rows
from cli.output.units import percent_text, size_text, span_text
from cli.remote.salusd import connect
from nodedaemon.wire.control import (
    AdmissionWhy,
    DeviceStatus,
    LaneStatus,
    NodeStatus,
    Reason,
    SessionStatus,
    SessionWhy,
    WhyAnswer,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, in bytes and nanoseconds.")]
Parsable = Annotated[
    bool, typer.Option("--parsable2", "-P", help="Print columns separated by |, in bytes and nanoseconds.")
]

DEVICE_COLUMNS = (
    Column("index", "DEVICE", "right"),
    Column("name", "NAME"),
    Column("state", "STATE"),
    Column("policy", "POLICY"),
    Column("capacity_bytes", "MEMORY", "right"),
    Column("persistent_bytes", "PERSISTENT", "right"),
    Column("lane_bytes", "LANES", "right"),
    Column("free_bytes", "FREE", "right"),
    Column("session_count", "SESSIONS", "right"),
    Column("waiting_count", "WAITING", "right"),
)
LANE_COLUMNS = (
    Column("lane", "LANE", "right"),
    Column("device", "DEVICE", "right"),
    Column("state", "STATE"),
    Column("size_bytes", "SIZE", "right"),
    Column("held_bytes", "HELD", "right"),
    Column("holder", "HOLDER", "right"),
    Column("sessions", "SESSIONS"),
)
SESSION_COLUMNS = (
    Column("job", "JOB"),
    Column("user", "USER"),
    Column("session", "SESSION", "right"),
    Column("device", "DEVICE", "right"),
    Column("lane", "LANE", "right"),
    Column("state", "STATE"),
    Column("job_class", "CLASS"),
    Column("persistent_bytes", "P", "right"),
    Column("ephemeral_bytes", "E", "right"),
    Column("share_permille", "SHARE", "right"),
    Column("iteration_count", "ITERATIONS", "right"),
    Column("waited_ns", "WAITED", "right"),
    Column("reason", "REASON"),
)


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command("status")(status)
    app.command("why")(why)


def status(
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="[JOB]", show_default=False, help="Only this job.")] = "",
    json: Json = False,
    parsable: Parsable = False,
) -> None:
    """Show the devices of this node, their lanes and sessions, and why sessions wait.

    Other users' jobs appear without their names. On a node without salusd, such as a login node, this shows your jobs
    in the queue.
    """
    form = form_of(json=json, parsable=parsable)
    try:
        node = connect(context).ask_for(NodeStatus, "status", job=job)
    except UnreachableError as error:
        try:
            show_queue(context, job, form)
        except UnreachableError:
            raise error from None
        return
    if form is Form.JSON:
        write_json(msgspec.to_builtins(node))
        return
    indices = {device.device: device.index for device in node.devices}
    is_plain = form is Form.PARSABLE
    sessions = [session_row(session, indices, is_plain=is_plain) for session in node.sessions]
    if is_plain:
        write_rows(sessions, SESSION_COLUMNS, form)
        return
    write_rows([device_row(device) for device in node.devices], DEVICE_COLUMNS, form)
    for heading, rows, columns in (
        ("lanes", [lane_row(lane, indices) for lane in node.lanes], LANE_COLUMNS),
        ("sessions", sessions, SESSION_COLUMNS),
    ):
        if rows:
            print()
            write_rows(rows, columns, form)
        elif heading == "sessions":
            print("\nno sessions")
    for line in notes_of(node):
        print(line)


def notes_of(node: NodeStatus) -> list[str]:
    """Problems that an admin should know about."""
    notes = []
    daemon = node.daemon
    if not daemon.is_database_up:
        notes.append(f"no database, {daemon.spool_records} records spooled; {daemon.database_error}".rstrip("; "))
    if daemon.spool_dropped:
        notes.append(f"{daemon.spool_dropped} records dropped: the spool was full")
    if daemon.journal_fault:
        notes.append(f"journal: {daemon.journal_fault}")
    if daemon.is_gathering:
        notes.append("the daemon was restarted and is waiting for its sessions to reconnect")
    if daemon.reload_error:
        notes.append(f"the last reload failed; the old configuration is still in effect: {daemon.reload_error}")
    return notes


def device_state(device: DeviceStatus) -> str:
    if device.lost_reason is not None:
        return f"lost ({device.lost_reason})"
    if device.is_drained:
        return f"drained ({device.drain_reason})" if device.drain_reason else "drained"
    return "up"


def device_row(device: DeviceStatus) -> dict[str, Cell]:
    return {
        "index": device.index,
        "name": device.name,
        "state": device_state(device),
        "policy": device.policy,
        "capacity_bytes": size_text(device.capacity_bytes),
        "persistent_bytes": size_text(device.persistent_bytes),
        "lane_bytes": size_text(device.lane_bytes),
        "free_bytes": size_text(device.free_bytes),
        "session_count": device.session_count,
        "waiting_count": device.waiting_count,
    }


def lane_row(lane: LaneStatus, indices: dict[str, int]) -> dict[str, Cell]:
    return {
        "lane": lane.lane,
        "device": indices[lane.device],
        "state": lane.state,
        "size_bytes": size_text(lane.size_bytes),
        "held_bytes": size_text(lane.held_bytes),
        "holder": lane.holder,
        "sessions": ",".join(str(session) for session in lane.sessions),
    }


def session_row(session: SessionStatus, indices: dict[str, int], *, is_plain: bool) -> dict[str, Cell]:
    """A row of the table; with `is_plain`, in base units."""
    state = session.state + ("*" if session.is_stopped else "")
    return {
        "job": session.job or "-",
        "user": session.user or "-",
        "session": session.session,
        "device": indices[session.device],
        "lane": session.lane,
        "state": state,
        "job_class": session.job_class,
        "persistent_bytes": session.persistent_bytes if is_plain else size_text(session.persistent_bytes),
        "ephemeral_bytes": session.ephemeral_bytes if is_plain else size_text(session.ephemeral_bytes),
        "share_permille": session.share_permille if is_plain else percent_text(session.share_permille),
        "iteration_count": session.iteration_count,
        "waited_ns": session.waited_ns if is_plain else span_text(session.waited_ns),
        "reason": session.reason,
    }


def why(
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="JOB", help="Job id of Slurm or of salus run.")],
    json: Json = False,
) -> None:
    """Explain why a job is not running: every reason, with what is needed and what is free, and what would change it.

    Possible changes are tried on a copy of the daemon's state, so the answer is what the daemon would do. For a job in
    Slurm's queue, and on login nodes, this prints Slurm's reason and the basis of the job's charge.
    """
    try:
        answer = connect(context).ask_for(WhyAnswer, "why", job=job)
    except (UnreachableError, NotFoundError) as error:
        try:
            answer = ask_queue_why(context, job)
        except UnreachableError:
            raise error from None
    if json:
        write_json(msgspec.to_builtins(answer))
        return
    print("\n".join(why_lines(answer)))


def why_lines(answer: WhyAnswer) -> list[str]:
    """The answer as text."""
    if answer.admission is not None:
        return [*_job_lines(answer), *_admission_lines(answer.admission)]
    if not answer.sessions:
        return [f"job {answer.job}: no session yet: none of its processes has connected to Salus"]
    return [line for session in answer.sessions for line in _session_lines(answer, session)]


def _job_lines(answer: WhyAnswer) -> list[str]:
    reasons = ", ".join(_reason_text(reason) for reason in answer.reasons) or "no reason from Slurm"
    return [f"job {answer.job}: {answer.state.lower()}, {reasons}"]


def _admission_lines(admission: AdmissionWhy) -> list[str]:
    charge, profile, now = admission.charge, admission.profile, admission.now
    sizes = "none: its first run gets a device of its own and is measured"
    if profile is not None:
        sizes = f"persistent {size_text(profile.persistent_bytes)}, ephemeral {size_text(profile.ephemeral_bytes)}"
        sizes += f", from {profile.run_count} runs"
    decision = f"{now.shards or 'all'} shards by {now.basis}" if now.is_admitted else "refused"
    return [
        f"  admitted: {charge.kind}, {charge.shards or 'all'} shards, class {charge.job_class}",
        f"  profile:  {sizes}",
        f"  now:      {decision}",
        *(f"            {_reason_text(reason)}" for reason in now.reasons),
    ]


def _session_lines(answer: WhyAnswer, session: SessionWhy) -> list[str]:
    lines = [f"job {answer.job} of {answer.user}, session {session.session}: {session.state}"]
    if not session.reasons:
        lines.append("  nothing prevents it from running")
    for reason in session.reasons:
        lines.append(f"  - {_reason_text(reason)}")
        if reason.advice:
            lines.append(f"    {reason.advice}")
    served = [change for change in session.changes if change.is_served]
    if served:
        lines.append("  what would change it:")
    for change in served:
        count = change.boundary_count or 0
        when = "immediately" if not count else f"after {count} boundar{'y' if count == 1 else 'ies'}"
        lines.append(f"    {change.change}: it would run {when}")
    return lines


def _reason_text(reason: Reason) -> str:
    if reason.needed is None or reason.free is None:
        return reason.what
    if reason.unit == "bytes":
        return f"{reason.what}: {size_text(reason.needed)} needed, {size_text(reason.free)} free"
    return f"{reason.what}: {reason.needed} {reason.unit} needed, {reason.free} free"
