"""The event that confirms a command, for all that drive an engine without devices: what-ifs, the simulator, tests."""

from __future__ import annotations

from nodedaemon.core import events
from nodedaemon.core.commands import Command, OpenLane, ReleaseLane, ReleaseSession


def confirmation(command: Command) -> events.Event | None:
    """The event that reports the success of the command; None if the engine waits for none."""
    match command:
        case OpenLane():
            return events.LaneOpened(command.lane, command.epoch)
        case ReleaseLane():
            return events.LaneReleased(command.lane, command.epoch)
        case ReleaseSession():
            return events.SessionReleased(command.session)
        case _:
            return None
