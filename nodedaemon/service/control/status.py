"""What `salus status`, `top` and `why` are told: the engine's snapshot with the shell's names on it.

Users see their own jobs in full and others' only as load. `why` tries changes on a fork of the engine and answers what
they would lead to, with the same code that decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from nodedaemon.core import events, explain
from nodedaemon.core.errors import RequestError
from nodedaemon.core.policies import POLICIES
from nodedaemon.core.sessions import SessionState
from nodedaemon.core.snapshots import DeviceSnapshot, SessionSnapshot
from nodedaemon.core.types import DeviceId, JobId, LaneId
from nodedaemon.drivers.device import Device, Reading
from nodedaemon.service.journal.dispatcher import Dispatcher
from nodedaemon.service.sessions.roster import Roster
from nodedaemon.wire.control import DeviceStatus, LaneStatus, Reason, SessionStatus, SessionWhy, WhatIf, WhyAnswer

OTHERS_TRIED_MAX = 16


@dataclass(frozen=True, slots=True)
class Viewer:
    uid: int
    is_operator: bool

    def may_see(self, uid: int) -> bool:
        return self.is_operator or uid == self.uid


class StatusView:
    def __init__(
        self,
        dispatcher: Dispatcher,
        roster: Roster,
        devices: Mapping[DeviceId, Device],
        readings: Mapping[DeviceId, Reading],
        drain_reasons: Mapping[DeviceId, str],
        *,
        held_bytes: Callable[[LaneId], int | None],
    ) -> None:
        self._dispatcher = dispatcher
        self._roster = roster
        self._devices = devices
        self._readings = readings
        self._drain_reasons = drain_reasons
        self._held_bytes = held_bytes

    # Status

    def devices(self) -> list[DeviceStatus]:
        return [self._device(device) for device in self._dispatcher.engine.snapshot().devices]

    def _device(self, device: DeviceSnapshot) -> DeviceStatus:
        known = self._devices[device.device]
        reading = self._readings.get(device.device)
        pids = {facts.process.pid for facts in self._dispatcher.state.sessions.values()}
        foreign_bytes = None
        if reading is not None and known.kind == "cuda":
            foreign_bytes = sum(one.used_bytes for one in reading.processes if one.pid not in pids)
        shares = [share for _, share, entitled in self._shares(device) if entitled]
        return DeviceStatus(
            device=device.device,
            index=known.index,
            name=known.name,
            model=known.model,
            kind=known.kind,
            policy=device.policy,
            capacity_bytes=device.capacity_bytes,
            persistent_bytes=device.persistent_bytes,
            lane_bytes=device.held_bytes,
            free_bytes=device.free_bytes,
            foreign_bytes=foreign_bytes,
            used_bytes=reading.used_bytes if reading is not None else None,
            busy_permille=reading.busy_permille if reading is not None else None,
            is_drained=device.is_drained,
            drain_reason=self._drain_reasons.get(device.device, ""),
            lost_reason=device.lost_reason,
            session_count=len(device.sessions),
            waiting_count=sum(1 for one in device.sessions if one.state is SessionState.WAITING) + len(device.arrivals),
            jain=jain_index(shares),
        )

    @staticmethod
    def _shares(device: DeviceSnapshot) -> list[tuple[SessionSnapshot, int, int]]:
        """Each session with its share of the service had by those present, and the share of its weight."""
        total_ns = sum(session.service_ns for session in device.sessions)
        weights = sum(session.weight for session in device.sessions if not session.is_ungated)
        return [
            (
                session,
                session.service_ns * 1000 // total_ns if total_ns else 0,
                session.weight * 1000 // weights if weights and not session.is_ungated else 0,
            )
            for session in device.sessions
        ]

    def lanes(self, viewer: Viewer) -> list[LaneStatus]:
        return [
            LaneStatus(
                lane=lane.lane,
                device=device.device,
                state=lane.state,
                size_bytes=lane.held_bytes,
                held_bytes=self._held_bytes(lane.lane),
                holder=lane.holder,
                sessions=list(lane.sessions),
                domain=lane.domain if viewer.is_operator else "",
            )
            for device in self._dispatcher.engine.snapshot().devices
            for lane in device.lanes
        ]

    def sessions(self, viewer: Viewer, job: str = "") -> list[SessionStatus]:
        return [
            self._session(device, session, share, entitled, viewer)
            for device in self._dispatcher.engine.snapshot().devices
            for session, share, entitled in self._shares(device)
            if not job or session.job == job
        ]

    def _session(
        self, device: DeviceSnapshot, session: SessionSnapshot, share: int, entitled: int, viewer: Viewer
    ) -> SessionStatus:
        facts = self._dispatcher.state.sessions.get(session.session)
        live = self._roster.get(session.session)
        uid = facts.uid if facts is not None else -1
        is_seen = viewer.may_see(uid)
        job = self._dispatcher.state.jobs.get(session.job)
        is_waiting = session.state in (SessionState.WAITING, SessionState.ARRIVING)
        since_ns = session.wanted_ns if session.state is SessionState.WAITING else (facts.start_mono_ns if facts else 0)
        return SessionStatus(
            session=session.session,
            job=session.job if is_seen else "",
            user=job.user if job is not None and is_seen else "",
            name=job.name if job is not None and is_seen else "",
            device=device.device,
            lane=session.lane,
            state=session.state,
            job_class=str(session.job_class),
            weight=session.weight,
            persistent_bytes=session.persistent_bytes,
            ephemeral_bytes=session.ephemeral_bytes,
            own_bytes=live.own_bytes_max if live is not None and is_seen and live.own_bytes_max else None,
            service_ns=session.service_ns,
            share_permille=share,
            entitled_permille=entitled,
            waited_ns=session.waited_ns,
            waiting_ns=max(0, self._dispatcher.clock() - since_ns) if is_waiting else 0,
            iteration_count=session.iteration_count,
            handover_count=session.handover_count,
            is_gated=facts.view.is_gated if facts is not None else True,
            is_stopped=session.is_stopped,
            is_connected=live is not None and live.connection is not None,
            pid=facts.process.pid if facts is not None and is_seen else 0,
            reason=self._short_reason(device, session, viewer),
        )

    def _short_reason(self, device: DeviceSnapshot, session: SessionSnapshot, viewer: Viewer) -> str:
        reasons = self._reasons(device, session, viewer)
        return reasons[0].what if reasons else ""

    # Why

    def why(self, job: JobId, viewer: Viewer) -> WhyAnswer:
        facts = self._dispatcher.state.jobs.get(job)
        if facts is None or not viewer.may_see(facts.uid):
            raise RequestError(f"why: job {job}: not on this node, or not yours; see salus status")
        found = [
            SessionWhy(
                session=session.session,
                device=device.device,
                state=session.state,
                reasons=self._reasons(device, session, viewer),
                changes=self._changes(device, session, viewer),
            )
            for device in self._dispatcher.engine.snapshot().devices
            for session in device.sessions
            if session.job == job
        ]
        return WhyAnswer(job=job, user=facts.user, state="RUNNING", sessions=found)

    def _reasons(self, device: DeviceSnapshot, session: SessionSnapshot, viewer: Viewer) -> list[Reason]:
        """The engine's own reasons; a holder that the viewer may not see is not named."""
        if session.state not in (SessionState.ARRIVING, SessionState.WAITING):
            return []
        lane = next((one for one in device.lanes if one.lane == session.lane), None)
        holder = self._dispatcher.state.sessions.get(lane.holder) if lane is not None and lane.holder else None
        hidden = f"job {holder.job}" if holder is not None and not viewer.may_see(holder.uid) else None
        reasons = []
        for one in explain.reasons(self._dispatcher.engine, session.session):
            what = one.what.replace(hidden, "another user's job") if hidden else one.what
            reasons.append(Reason(what=what, needed=one.needed, free=one.free, unit=one.unit, advice=one.advice))
        told = self._drain_reasons.get(device.device, "")
        if device.is_drained and told:
            reasons.append(Reason(what=f"the admin says: {told}"))
        return reasons

    def _changes(self, device: DeviceSnapshot, session: SessionSnapshot, viewer: Viewer) -> list[WhatIf]:
        if session.state not in (SessionState.ARRIVING, SessionState.WAITING):
            return []
        changes = [self._try("nothing changes, boundaries are reached", session, [])]
        others = [one for one in device.sessions if one.job != session.job][:OTHERS_TRIED_MAX]
        for other in others:
            facts = self._dispatcher.state.sessions.get(other.session)
            name = f"job {other.job}" if facts is not None and viewer.may_see(facts.uid) else "another user's job"
            changes.append(self._try(f"{name} ends", session, [events.SessionLeft(other.session)]))
        limits = next(one.limits for one in self._dispatcher.engine.devices() if one.id == device.device)
        for policy in sorted(POLICIES):
            if policy != device.policy and session.state is SessionState.WAITING:
                change = events.LimitsChanged(device.device, replace(limits, policy=policy))
                changes.append(self._try(f"policy {policy}", session, [change]))
        if device.is_drained:
            changes.append(self._try("the device is resumed", session, [events.DeviceResumed(device.device)]))
        return changes

    def _try(self, change: str, session: SessionSnapshot, first: list[events.Event]) -> WhatIf:
        boundary_count = explain.boundaries_until_served(
            self._dispatcher.engine, session.session, first, self._dispatcher.clock()
        )
        return WhatIf(change=change, is_served=boundary_count is not None, boundary_count=boundary_count)


def jain_index(shares: list[int]) -> float | None:
    """Jain's index of the shares had; None for fewer than two."""
    if len(shares) < 2 or not any(shares):
        return None
    return round(sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares)), 4)
