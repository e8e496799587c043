"""The live view at 80 columns, without colour, from a literal status."""

import msgspec
import pytest

from cli.node.top import view_lines
from cli.output.units import counted, percent_text, size_text, span_text
from nodedaemon.wire.control import DaemonStatus, DeviceStatus, LaneStatus, NodeStatus, SessionStatus

MIB = 1 << 20


def session(number, state, reason=""):
    return SessionStatus(
        session=number, job=f"{100 + number}", user="ada", device="HOST-1", lane=1, state=state, job_class="normal",
        weight=2, persistent_bytes=100 * MIB, ephemeral_bytes=50 * MIB, own_bytes=None,
        service_ns=0, share_permille=500,
        entitled_permille=500, waited_ns=0, waiting_ns=3_000_000, iteration_count=7, handover_count=0, is_gated=True,
        is_stopped=False, is_connected=True, pid=1, reason=reason,
    )  # fmt: skip


NODE = NodeStatus(
    node="n1", cluster="c", now_utc_ns=0,
    daemon=DaemonStatus(
        version="1", pid=1, started_utc_ns=0, event_count=0, journal_fault="", spool_records=3, spool_dropped=0,
        is_database_up=False, database_error="locked", is_gathering=False,
    ),
    devices=[
        DeviceStatus(
            device="HOST-1", index=0, name="host0", model="host", kind="host", policy="fair", capacity_bytes=1000 * MIB,
            persistent_bytes=200 * MIB, lane_bytes=50 * MIB, free_bytes=750 * MIB, foreign_bytes=None, used_bytes=None,
            busy_permille=None, is_drained=True, drain_reason="dust", lost_reason=None, session_count=2,
            waiting_count=1, jain=0.99,
        )
    ],
    lanes=[
        LaneStatus(
            lane=1, device="HOST-1", state="open", size_bytes=50 * MIB, held_bytes=0, holder=1, sessions=[1, 2],
            domain=""
        )
    ],
    sessions=[session(1, "running"), session(2, "waiting", "its lane is with job 101; policy fair")],
)  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_line_is_wider_than_the_terminal_and_nothing_is_missing(width):
    lines = [line.plain for line in view_lines(NODE, width, "share", is_ascii=True)]
    assert max(len(line) for line in lines) <= width
    text = "\n".join(lines)
    assert text.isascii()
    for fact in (
        "host0",
        "drained (dust)",
        "policy fair",
        "no database, 3 records",
        "lane 1",
        "101",
        "waits" * (width < 120),
    ):
        assert fact in text
    if width >= 80:
        assert "its lane is with job 101" in text


def test_the_bar_shows_persistent_lane_and_free_memory_in_proportion():
    bar = next(line.plain for line in view_lines(NODE, 80, "share", is_ascii=True) if "PPP" in line.plain)
    inside = bar[bar.index("[") + 1 : bar.index("]")]
    assert inside.count("P") == -(-len(inside) // 5)
    assert set(inside) == {"P", "L", "."}


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0"), (1023, "1023"), (1024, "1K"), (1536 * MIB, "1.5G"), (512 * MIB, "512M"), (None, "")],
)
def test_a_size_is_printed_in_its_largest_unit(size_bytes, text):
    assert size_text(size_bytes) == text


@pytest.mark.parametrize(
    ("span_ns", "text"),
    [
        (5_000, "5us"),
        (12_000_000, "12ms"),
        (4_500_000_000, "4.5s"),
        (200 * 10**9, "03:20"),
        (93_784 * 10**9, "1-02:03:04"),
    ],
)
def test_a_duration_is_printed_in_a_suitable_unit(span_ns, text):
    assert span_text(span_ns) == text


def test_permille_are_printed_as_percent():
    assert percent_text(333) == "33.3%"


def test_a_count_of_one_has_a_singular_noun():
    assert [counted(count, "file") for count in (0, 1, 2)] == ["0 files", "1 file", "2 files"]


@pytest.mark.parametrize("width", [80, 200])
def test_names_do_not_act_on_the_terminal(width):
    name = "\x1b[2J\r\x9b\u202e"
    lines = view_lines(
        msgspec.structs.replace(
            NODE, sessions=[msgspec.structs.replace(NODE.sessions[1], job=name, user=name, reason=name)]
        ),
        width, "share", is_ascii=True,
    )  # fmt: skip
    assert all(line.plain.isprintable() for line in lines)
    assert "[2J" in "".join(line.plain for line in lines)
