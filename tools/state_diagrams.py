"""Writes docs/sessions.md from the tables of the core. `make man` runs it, and tests/tidy compares the page.

usage: python -m tools.state_diagrams FILE
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from nodedaemon.core.state.lanes import LANE_TRANSITIONS, LaneState
from nodedaemon.core.state.sessions import TRANSITIONS, SessionState

SESSION_MEANS = {
    SessionState.ARRIVING: "Claims its persistent bytes. The Prolog has not returned yet.",
    SessionState.IDLE: "Admitted, and does not want a grant at the moment.",
    SessionState.WAITING: "Waits at a boundary for a grant.",
    SessionState.RUNNING: "Holds a grant.",
    SessionState.REVOKED: "Holds a grant that ends at the next boundary.",
    SessionState.UNGATED: "Admitted by its peak memory, without taking turns.",
    SessionState.LEAVING: "Its process is gone. Its memory is not confirmed free yet.",
}
LANE_MEANS = {
    LaneState.PARKED: "Holds no bytes. Its sessions keep their survivors in their own memory.",
    LaneState.OPENING: "Its bytes are counted. The memory is not ready yet.",
    LaneState.OPEN: "Its sessions can get grants, one at a time.",
    LaneState.RELEASING: "Its bytes are counted until they are confirmed free.",
}

PAGE = """# States of sessions and lanes

`make man` generates this page from `TRANSITIONS` in nodedaemon/core/state/sessions.py and
`LANE_TRANSITIONS` in nodedaemon/core/state/lanes.py. The engine refuses a transition that is not in
these tables and reports the session's last steps.

## Session

{session}

A session that leaves before its admission is forgotten at once. A *leaving* session is forgotten
when its memory is confirmed free.

## Lane

{lane}

To resize a lane, the engine releases its memory, waits for the confirmation and opens it again. A
lane belongs to one domain for its whole life. A lane without sessions is closed as soon as it holds
no bytes. If the device cannot allocate the memory, *opening* returns to *parked*, and the engine
tries again after a second.
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
    lines += ["```", "", "| State | Meaning | Next |", "|---|---|---|"]
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
