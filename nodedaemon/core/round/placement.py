"""Chooses the lane of a session: joining, moving and merging. `core.round.claims` handles bytes and grants."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nodedaemon.core.commands import BindSession, Command
from nodedaemon.core.state.lanes import Device, Lane
from nodedaemon.core.state.sessions import Session
from nodedaemon.core.types import Domain, LaneId


class Placement:
    """Binds sessions of one device to lanes and issues the commands."""

    def __init__(self, device: Device, commands: list[Command], new_lane: Callable[[], LaneId]) -> None:
        self.device = device
        self.commands = commands
        self._new_lane = new_lane

    def add_lane(self, domain: Domain) -> Lane:
        lane = Lane(self._new_lane(), domain, device=self.device.id)
        self.device.add_lane(lane)
        return lane

    def bind(self, session: Session, lane: Lane) -> None:
        """Move the session to the lane. A waiter keeps its position in the order."""
        if session.lane is not None:
            session.lane.leave(session)
        lane.join(session)
        self.commands.append(BindSession(session.id, lane.id))
        if session.is_queued:
            self.device.add_waiter(session)

    def place(self, session: Session) -> None:
        """Join the best lane of the domain, or a parked lane that gets bytes when the session wants to run."""
        lane = self.device.find_lane(session) or self.device.parked_lane(session.domain)
        self.bind(session, lane or self.add_lane(session.domain))

    def merge(self, lane: Lane, target: Lane) -> None:
        """Move every session of `lane` to `target`."""
        for session in list(lane.sessions.values()):
            self.bind(session, target)

    def merge_target(self, lane: Lane, claimant: Lane | None, leaving: Sequence[Lane]) -> Lane | None:
        """The lane of the same domain into which `lane` is merged instead of parked, or None."""
        if claimant is not None and claimant.domain == lane.domain:
            return claimant
        target_bytes = lane.target_bytes
        peers = (
            peer
            for peer in self.device.domains[lane.domain].values()
            if peer is not lane and peer not in leaving and peer.is_joinable and peer.held_bytes >= target_bytes
        )
        return min(peers, key=lambda peer: (peer.held_bytes, peer.id), default=None)

    def clear(self, lane: Lane, holder: Session) -> None:
        """Move all sessions but `holder` to other lanes, because its lane will not become free.

        A named successor stays: its predecessor may have started it already.
        """
        for session in list(lane.sessions.values()):
            if session is not holder and session.id not in holder.offers.values():
                self.place(session)
