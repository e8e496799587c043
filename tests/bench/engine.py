"""Cost of one engine event with 100 and with 10,000 sessions on a device, alternating in one run.

Every session always wants to run; each measured event is a returned grant (accounting, re-keying, a new grant, a revoke
with its successor, the next wake-up). The sizes take turns, so both see the same machine; medians are compared.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

from nodedaemon.core import commands as cmd
from nodedaemon.core import events as ev
from nodedaemon.core.confirmations import confirmation
from nodedaemon.core.engine import Engine
from nodedaemon.core.policies import POLICIES
from nodedaemon.core.types import GIB, MIB, DeviceId, DeviceLimits, Domain, Epoch, JobId, SessionId

DEVICE = DeviceId("bench")
SIZES = (100, 10_000)
EVENTS_PER_BATCH = 500


class EngineDriver:
    """Answers each command at once and tracks the running sessions. An iteration takes 1 ms of virtual time."""

    def __init__(self, session_count: int, policy: str) -> None:
        self.engine = Engine()
        self.now_ns = 0
        self.running: dict[SessionId, tuple[Epoch, Epoch | None, SessionId | None]] = {}
        limits = DeviceLimits(capacity_bytes=session_count * 2 * MIB + GIB, policy=policy)
        self.feed(ev.DeviceAdded(DEVICE, limits))
        for number in range(1, session_count + 1):
            session = SessionId(number)
            domain = Domain(f"user:{number % 3}")
            self.feed(ev.SessionArrived(session, DEVICE, JobId(str(number)), domain, 2 * MIB, 400 * MIB))
        for number in range(1, session_count + 1):
            self.feed(ev.GrantWanted(SessionId(number)))

    def feed(self, event: ev.Event) -> None:
        pending = [event]
        while pending:
            for command in self.engine.handle(pending.pop(), self.now_ns):
                if (event := confirmation(command)) is not None:
                    pending.append(event)
                match command:
                    case cmd.Grant():
                        self.running[command.session] = (command.epoch, None, None)
                    case cmd.Revoke():
                        self.running[command.session] = (command.epoch, command.successor_epoch, command.successor)
                    case _:
                        pass

    def batch_ns(self) -> float:
        """Nanoseconds per event, over one batch of returned grants."""
        begin = time.perf_counter_ns()
        for _ in range(EVENTS_PER_BATCH):
            session = next(iter(self.running))
            epoch, handed_over, successor = self.running.pop(session)
            if successor is not None and handed_over is not None:
                self.running[successor] = (handed_over, None, None)
            self.now_ns += 1_000_000
            self.feed(ev.GrantReturned(session, epoch, 1, 0, wants_next=True, handed_over=handed_over))
        return (time.perf_counter_ns() - begin) / EVENTS_PER_BATCH


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    result: dict[str, object] = {"bench": "engine", "n": rounds, "events_per_batch": EVENTS_PER_BATCH}
    worst = 0.0
    for policy in POLICIES:
        drivers = {size: EngineDriver(size, policy) for size in SIZES}
        costs: dict[int, list[float]] = {size: [] for size in SIZES}
        for _ in range(rounds):
            for size, driver in drivers.items():
                costs[size].append(driver.batch_ns())
        medians = {size: statistics.median(values) for size, values in costs.items()}
        ratio = medians[SIZES[1]] / medians[SIZES[0]]
        worst = max(worst, ratio)
        print(
            f"{policy}: {medians[100] / 1e3:.1f} us at 100, {medians[10_000] / 1e3:.1f} us at 10,000", file=sys.stderr
        )
        result[policy] = {
            "event_us_100": round(medians[SIZES[0]] / 1e3, 2),
            "event_us_10000": round(medians[SIZES[1]] / 1e3, 2),
            "ratio": round(ratio, 3),
            "events_per_second": round(1e9 / medians[SIZES[1]]),
        }
    result["ratio_worst"] = round(worst, 3)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
