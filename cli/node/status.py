"""`salus status`: devices, lanes and sessions. `salus why`: why a job is not running, and what would change that."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import typer

from cli.node.queue import ask_queue_why, show_queue
from cli.output.render import Cell, Column, Form, form_of, parse_columns, write_json, write_rows
from cli.output.units import counted, percent_text, size_text, span_text
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
from nodedaemon.wire.envelope import NotFoundError, UnreachableError
from nodedaemon.wire.text import visible

Json = Annotated[bool, typer.Option("--json", help="Print JSON, in bytes and nanoseconds.")]
Parsable = Annotated[
    bool, typer.Option("--parsable2", "-P", help="Print columns separated by |, in bytes and nanoseconds.")
]

DEVICE_COLUMNS = parse_columns(
    "index=DEVICE> name=NAME state=STATE policy=POLICY capacity_bytes=MEMORY> "
    "persistent_bytes=PERSISTENT> lane_bytes=LANES> free_bytes=FREE> session_count=SESSIONS> "
    "waiting_count=WAITING>"
)
LANE_COLUMNS = parse_columns(
    "lane=LANE> device=DEVICE> state=STATE size_bytes=SIZE> held_bytes=HELD> holder=HOLDER> sessions=SESSIONS"
)
SESSION_COLUMNS = parse_columns(
    "job=JOB user=USER session=SESSION> device=DEVICE> lane=LANE> state=STATE job_class=CLASS "
    "persistent_bytes=P> ephemeral_bytes=E> share_permille=SHARE> iteration_count=ITERATIONS> "
    "waited_ns=WAITED> reason=REASON"
)


def status(
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="JOB", show_default=False, help="Only this job.")] = "",
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
    write_rows(
        [_row(device, DEVICE_COLUMNS, state=device_state(device)) for device in node.devices], DEVICE_COLUMNS, form
    )
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
        print(visible(line))


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
    notes += [
        f"lane {lane.lane} is not free: process {process.pid} of {process.user} keeps its memory"
        for lane in node.lanes
        for process in lane.kept_by
    ]
    return notes


def device_state(device: DeviceStatus) -> str:
    if device.lost_reason is not None:
        return f"lost ({device.lost_reason})"
    if device.is_drained:
        return f"drained ({device.drain_reason})" if device.drain_reason else "drained"
    return "up"


def _row(status: object, columns: Sequence[Column], *, is_plain: bool = False, **computed: Cell) -> dict[str, Cell]:
    """The attributes of `status` that `columns` name, or their `computed` values; sizes are text unless `is_plain`."""
    row: dict[str, Cell] = {}
    for key in (column.key for column in columns):
        value: Any = computed[key] if key in computed else getattr(status, key)
        row[key] = size_text(value) if key.endswith("_bytes") and not is_plain else value
    return row


def lane_row(lane: LaneStatus, indices: dict[str, int]) -> dict[str, Cell]:
    sessions = ",".join(str(session) for session in lane.sessions)
    return _row(lane, LANE_COLUMNS, device=indices[lane.device], sessions=sessions)


def session_row(session: SessionStatus, indices: dict[str, int], *, is_plain: bool) -> dict[str, Cell]:
    """A row of the table; with `is_plain`, in base units."""
    return _row(
        session,
        SESSION_COLUMNS,
        is_plain=is_plain,
        job=session.job or "-",
        user=session.user or "-",
        device=indices[session.device],
        state=session.state + ("*" if session.is_stopped else ""),
        share_permille=session.share_permille if is_plain else percent_text(session.share_permille),
        waited_ns=session.waited_ns if is_plain else span_text(session.waited_ns),
    )


def why(
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="JOB", help="Job id from Slurm or from salus run.")],
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
    print("\n".join(visible(line) for line in why_lines(answer)))


def why_lines(answer: WhyAnswer) -> list[str]:
    """The answer as text."""
    if answer.admission is not None:
        reasons = ", ".join(_reason_text(reason) for reason in answer.reasons) or "no reason from Slurm"
        return [f"job {answer.job}: {answer.state.lower()}, {reasons}", *_admission_lines(answer.admission)]
    if not answer.sessions:
        return [f"job {answer.job}: no session yet: none of its processes has connected to Salus"]
    return [line for session in answer.sessions for line in _session_lines(answer, session)]


def _admission_lines(admission: AdmissionWhy) -> list[str]:
    charge, profile, now = admission.charge, admission.profile, admission.now
    sizes = "none: its first run gets a device of its own and is measured"
    if profile is not None:
        sizes = f"persistent {size_text(profile.persistent_bytes)}, ephemeral {size_text(profile.ephemeral_bytes)}"
        sizes += f", from {counted(profile.run_count, 'run')}"
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
    return f"{reason.what}: {counted(reason.needed, reason.unit.removesuffix('s'))} needed, {reason.free} free"
