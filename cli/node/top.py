"""`salus top`: a live view of the node in the terminal, with a bar for the memory of each device and each lane.

It works at 80 columns, without colours, and without a terminal (`--once`): letters repeat what colours show. Keys: q
quits, s changes the order of sessions, h shows the keys. The command changes nothing on the node.
"""

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TextIO

import msgspec
import typer

from cli.node.status import device_state, notes_of
from cli.output.render import write_json
from cli.output.units import percent_text, size_text, span_text
from cli.remote.salusd import DaemonClient, connect
from nodedaemon.wire.control import DeviceStatus, LaneStatus, NodeStatus, SessionStatus
from nodedaemon.wire.text import visible

if TYPE_CHECKING:
    from rich.text import Text

WIDTH_MIN = 60
#: From this width on, a session's reason is in its line; otherwise it has its own line.
WIDTH_WIDE = 120
ORDERS = ("share", "waiting", "memory", "job")
KEYS = "q quit   s order   h keys"


def top(
    context: typer.Context,
    once: Annotated[bool, typer.Option("--once", "-1", help="Print one view and exit.")] = False,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between updates.")] = 1.0,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="Use only ASCII characters.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one view as JSON.")] = False,
) -> None:
    """Watch devices, lanes and sessions live: memory, actual and entitled shares, and what sessions wait for.

    In a pipe, this prints one view, like --once.
    """
    client = connect(context)
    if json:
        write_json(msgspec.to_builtins(client.ask_for(NodeStatus, "status")))
        return
    if once or not sys.stdout.isatty():
        from rich.console import Console

        width = max(WIDTH_MIN, int(os.environ.get("COLUMNS", "0") or 0) or 80) if not sys.stdout.isatty() else None
        console = Console(width=width, no_color=bool(os.environ.get("NO_COLOR")), highlight=False)
        for line in view_lines(client.ask_for(NodeStatus, "status"), console.width, "share", is_ascii=ascii_only):
            console.print(line, no_wrap=True, crop=True)
        return
    watch(client, interval, is_ascii=ascii_only)


def watch(client: DaemonClient, interval_s: float, *, is_ascii: bool) -> None:
    """Update the view until the user quits."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(no_color=bool(os.environ.get("NO_COLOR")), highlight=False)
    order, shows_keys = 0, False
    with raw_keys(sys.stdin), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            node = client.ask_for(NodeStatus, "status")
            lines = view_lines(node, console.width, ORDERS[order], is_ascii=is_ascii)[: console.height - 1]
            if shows_keys:
                lines.append(Text(KEYS, style="reverse"))
            live.update(Text("\n").join(lines), refresh=True)
            key = next_key(sys.stdin, interval_s)
            if key in ("q", "\x03"):
                return
            if key == "s":
                order = (order + 1) % len(ORDERS)
            if key in ("h", "?"):
                shows_keys = not shows_keys


@contextmanager
def raw_keys(stream: TextIO) -> Iterator[None]:
    """Read keys without Enter and without echo; restore the terminal afterwards."""
    import termios
    import tty

    if not stream.isatty():
        yield
        return
    before = termios.tcgetattr(stream)
    try:
        tty.setcbreak(stream)
        yield
    finally:
        termios.tcsetattr(stream, termios.TCSADRAIN, before)


def next_key(stream: TextIO, timeout_s: float) -> str:
    if not stream.isatty():
        time.sleep(timeout_s)
        return ""
    ready, _, _ = select.select([stream], [], [], timeout_s)
    return stream.read(1) if ready else ""


def view_lines(node: NodeStatus, width: int, order: str, *, is_ascii: bool) -> "list[Text]":
    """The view as lines of at most `width` columns."""
    from rich.text import Text

    clock = time.strftime("%H:%M:%S", time.localtime(node.now_utc_ns / 1e9))
    lines = [Text(f"salus top  {node.node}  {clock}  {len(node.sessions)} sessions  order {order}", style="bold")]
    lines += [Text(visible(f"! {note}"), style="red") for note in notes_of(node)]
    for device in node.devices:
        lines.append(Text(""))
        lines += _device_lines(device, width, is_ascii=is_ascii)
        sessions = [session for session in node.sessions if session.device == device.device]
        for lane in (lane for lane in node.lanes if lane.device == device.device):
            lines.append(_lane_line(lane, sessions, device, width, is_ascii=is_ascii))
        if sessions:
            lines.append(Text(_session_heading(width), style="bold"))
        for session in sorted(sessions, key=_order_key(order)):
            lines += _session_lines(session, width)
    for line in lines:
        line.truncate(width, overflow="crop")
    return lines


def _device_lines(device: DeviceStatus, width: int, *, is_ascii: bool) -> "list[Text]":
    from rich.text import Text

    head = f"{device.index} {device.name}  {device_state(device)}  policy {device.policy}"
    if device.jain is not None:
        head += f"  Jain {device.jain:.3f}"
    if device.busy_permille is not None:
        head += f"  busy {percent_text(device.busy_permille)}"
    parts = (("P", device.persistent_bytes, "blue"), ("L", device.lane_bytes, "green"))
    sizes = (
        "".join(f" {letter} {size_text(value)}" for letter, value, _ in parts) + f" free {size_text(device.free_bytes)}"
    )
    bar = _bar(parts, device.capacity_bytes, max(10, width - len(sizes) - 4), is_ascii=is_ascii)
    return [
        Text(visible(head), style="bold" if device.lost_reason is None else "bold red"),
        Text("  ") + bar + Text(sizes),
    ]


def _bar(parts: tuple[tuple[str, int, str], ...], total: int, width: int, *, is_ascii: bool) -> "Text":
    """A bar whose letters repeat what its colours show."""
    from rich.text import Text

    bar = Text("[" if is_ascii else "▕")
    used = 0
    for letter, value, style in parts:
        cells = min(width - used, -(-value * width // total)) if total and value else 0
        bar.append(letter * cells, style=style)
        used += cells
    bar.append(("." if is_ascii else "·") * (width - used), style="dim")
    bar.append("]" if is_ascii else "▏")
    return bar


def _lane_line(
    lane: LaneStatus, sessions: list[SessionStatus], device: DeviceStatus, width: int, *, is_ascii: bool
) -> "Text":
    from rich.text import Text

    holder = next((session for session in sessions if session.session == lane.holder), None)
    running = "-" if holder is None else (holder.job or "another user's")
    waiting = sum(1 for session in sessions if session.lane == lane.lane and session.state == "waiting")
    text = f" {size_text(lane.size_bytes):>6} {lane.state:<9} runs {running}, {waiting} wait"
    letters = max(6, min(30, width - len(text) - 12))
    bar = _bar((("E", lane.size_bytes, "green"),), device.capacity_bytes, letters, is_ascii=is_ascii)
    return Text(f"  lane {lane.lane:<3} ") + bar + Text(visible(text))


def _session_heading(width: int) -> str:
    head = f"  {'JOB':<12} {'USER':<8} {'LANE':>4} {'STATE':<9} {'P':>6} {'E':>6} {'SHARE':>6}/{'DUE':<6}"
    return head + f" {'WAITED':>8}" + ("  REASON" if width >= WIDTH_WIDE else "")


def _session_lines(session: SessionStatus, width: int) -> "list[Text]":
    from rich.text import Text

    styles = {"running": "green", "revoked": "green", "waiting": "yellow", "arriving": "magenta"}
    state = session.state + ("*" if session.is_stopped else "")
    job, user, why = (visible(text) for text in (session.job, session.user, session.reason))
    text = (
        f"  {job[:12] or '-':<12} {user[:8] or '-':<8} {session.lane or '-':>4} {state[:9]:<9}"
        f" {size_text(session.persistent_bytes):>6} {size_text(session.ephemeral_bytes):>6}"
        f" {percent_text(session.share_permille):>6}/{percent_text(session.entitled_permille):<6}"
    )
    style = styles.get(session.state, "")
    text += f" {span_text(session.waiting_ns or session.waited_ns):>8}"
    if width >= WIDTH_WIDE:
        return [Text(f"{text}  {why}", style=style)]
    reason = [Text(f"    waits: {why}", style=style)] if why else []
    return [Text(text, style=style), *reason]


def _order_key(order: str) -> Callable[[SessionStatus], tuple[int | str, int]]:
    match order:
        case "waiting":
            return lambda session: (-session.waiting_ns, session.session)
        case "memory":
            return lambda session: (-session.persistent_bytes - session.ephemeral_bytes, session.session)
        case "job":
            return lambda session: (session.job, session.session)
        case _:
            return lambda session: (-session.share_permille, session.session)
