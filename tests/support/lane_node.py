"""A real salusd with one lane, whose sessions are test programs: what happened is read from status, log and gate pages.

Peers alternate: under `fair` with MaxOvertakes=1 a holder passes at most one boundary while another session waits.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from nodedaemon.service.sessions.gate_memory import GatePage, GateReading, GateState
from tests.support.lane_session import SessionProcess
from tests.support.salusd import Salusd, wait_until

MIB = 1 << 20
LANE_MIB = 16
#: Users who do not exist; the jobs of each are a domain of their own.
STRANGERS = (60001, 60002, 60003)
ALTERNATING = "MaxLanes=1\nPolicy=fair\nMaxOvertakes=1\nHangTimeout=2:00:00\nDomainQuantum=0\n"


class LaneNode(Salusd):
    def __init__(self, config: str = "", memory: str = "1G") -> None:
        idle = "" if "IdleRelease" in config else "IdleRelease=1:00:00\n"
        super().__init__(memory=memory, config=ALTERNATING + idle + config)

    def join(self, session: SessionProcess, *, persistent_mib: int = 64, uid: int = 0, lane_mib: int = LANE_MIB) -> str:
        """Make the process a job with these sizes; it is not attached yet."""
        sizes = {"persistent_bytes": persistent_mib * MIB, "ephemeral_bytes": lane_mib * MIB}
        return str(session.ask("join", control=str(self.control), uid=uid, **sizes))

    def attach(self, session: SessionProcess, flags: int = 0) -> None:
        answer = session.ask("hello", path=str(self.socket), flags=flags)
        assert answer[0] == 0, answer

    def session(self, pid: int) -> dict[str, Any]:
        """The status of a process's session; empty if there is none."""
        rows = (row for row in self.status()["sessions"] if row["pid"] == pid and row["state"] != "leaving")
        return next(rows, {})

    def wait_for_waiter(self, process: SessionProcess) -> None:
        """Until that process waits in the gate and the daemon knows it."""
        pid = process.process.pid
        wait_until(lambda: self.session(pid).get("state") == "waiting", f"process {pid} waits in the gate", self.story)

    def wait_for_holder(self, process: SessionProcess) -> None:
        pid = process.process.pid
        wait_until(lambda: self.session(pid).get("state") == "running", f"process {pid} holds the lane", self.story)

    def gate(self, process: SessionProcess) -> GateReading:
        """What the session's gate page says, read from the daemon's own descriptor of it."""
        mapped = re.findall(r" (\d+) +/memfd:salus-gate", Path(f"/proc/{process.process.pid}/maps").read_text())
        for entry in Path(f"/proc/{self.process.pid}/fd").iterdir():
            if "salus-gate" in str(entry.readlink()) and str(entry.stat().st_ino) in mapped:
                page = GatePage(os.open(entry, os.O_RDWR))
                try:
                    return page.read()
                finally:
                    page.close()
        raise AssertionError(f"process {process.process.pid} has no gate page of salusd")

    def wait_for_state(self, process: SessionProcess, state: GateState) -> None:
        wait_until(lambda: self.gate(process).state is state, f"the gate page says {state.name}", self.story)

    def wait_for_log(self, *words: str) -> str:
        """The first line of the log with all of `words`."""

        def find() -> str:
            lines = self.log.read_text().splitlines()
            return next((line for line in lines if all(word in line for word in words)), "")

        return str(wait_until(find, f"the log has a line with {words}", self.story))
