"""Writes docs/sessions.md from the tables of the core; `make man` runs it and tests/tidy compares.

usage: python -m tools.state_diagrams FILE
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from nodedaemon.core.lanes import LANE_TRANSITIONS, LaneState
from nodedaemon.core.sessions import TRANSITIONS, SessionState

SESSION_MEANS = {
    SessionState.ARRIVING: "Claims its persistent bytes; the Prolog has not returned yet.",
    SessionState.IDLE: "Admitted, and wants no grant now.",
    SessionState.WAITING: "Stands at a boundary, blocked in the gate.",
    SessionState.RUNNING: "Holds a grant.",
    SessionState.REVOKED: "Holds a grant that ends at the next boundary.",
    SessionState.UNGATED: "Admitted without a lane: runs by its peak.",
    SessionState.LEAVING: "Its process is gone; its memory is not yet seen free.",
}
LANE_MEANS = {
    LaneState.PARKED: "Holds no bytes; its sessions keep their survivors themselves.",
    LaneState.OPENING: "Its bytes are counted; the memory is not there yet.",
    LaneState.OPEN: "Its sessions may be granted, one at a time.",
    LaneState.RELEASING: "Its bytes are counted until they are seen free.",
}

PAGE = """# States of sessions and lanes

Written by `make man` from `TRANSITIONS` in nodedaemon/core/sessions.py and `LANE_TRANSITIONS` in
nodedaemon/core/lanes.py. The tables are the truth: a step that they do not have is refused with the session's last
steps, or is a bug of ours.

## A session

{session}

An arrival that leaves before it was admitted is forgotten at once. From *leaving* a session is forgotten when its
memory is seen free.

## A lane

{lane}

A resize is release, confirmation, open: a lane's memory has no third operation. A lane belongs to one domain for its
whole life; without sessions it is closed as soon as it holds no bytes. *Opening* to *parked* is a failure of the
device, tried again after a second.
"""


def section(first: StrEnum, table: Mapping[StrEnum, frozenset[StrEnum]], means: Mapping[StrEnum, str]) -> str:
    """A diagram and a table of one state machine."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first.value}"]
    lines += [
        f"    {state.value} --> {target.value}"
        for state in type(first)
        for target in type(first)
        if target in table[state]
    ]
    lines += ["```", "", "| state | means | next |", "|---|---|---|"]
    for state in type(first):
        following = ", ".join(target.value for target in type(first) if target in table[state]) or "none"
        lines.append(f"| {state.value} | {means[state]} | {following} |")
    return "\n".join(lines)


def page() -> str:
    """The whole document."""
    return PAGE.format(
        session=section(SessionState.ARRIVING, TRANSITIONS, SESSION_MEANS),  # type: ignore[arg-type]
        lane=section(LaneState.PARKED, LANE_TRANSITIONS, LANE_MEANS),  # type: ignore[arg-type]
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
