"""What `salus why` answers: the engine's reasons why a session does not run, and the changes that would let it run."""

from __future__ import annotations

from dataclasses import replace

from nodedaemon.core import events, explain
from nodedaemon.core.policies import POLICIES
from nodedaemon.core.state.sessions import SessionState
from nodedaemon.core.state.snapshots import DeviceSnapshot, SessionSnapshot
from nodedaemon.core.types import JobId
from nodedaemon.service.control.access import Caller
from nodedaemon.service.journal.dispatcher import Dispatcher
from nodedaemon.wire.control import Reason, SessionWhy, WhatIf, WhyAnswer
from nodedaemon.wire.envelope import NotFoundError

OTHERS_TRIED_MAX = 16


class WhyView:
    """A caller who may not see the blocking job learns only that it belongs to another user."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def answer(self, job: JobId, caller: Caller) -> WhyAnswer:
        facts = self._dispatcher.state.jobs.get(job)
        if facts is None or not caller.may_see(facts.uid):
            raise NotFoundError(f"why: job {job}: not on this node, or not yours; see salus status")
        sessions = [
            SessionWhy(
                session=session.session,
                device=device.device,
                state=session.state,
                reasons=self.reasons(device, session, caller),
                changes=self._changes(device, session, caller),
            )
            for device in self._dispatcher.engine.snapshot().devices
            for session in device.sessions
            if session.job == job
        ]
        return WhyAnswer(job=job, user=facts.user, state="RUNNING", sessions=sessions)

    def reasons(self, device: DeviceSnapshot, session: SessionSnapshot, caller: Caller) -> list[Reason]:
        if session.state not in (SessionState.ARRIVING, SessionState.WAITING):
            return []
        lane = next((one for one in device.lanes if one.lane == session.lane), None)
        holder = self._dispatcher.state.sessions.get(lane.holder) if lane is not None and lane.holder else None
        hidden = f"job {holder.job}" if holder is not None and not caller.may_see(holder.uid) else None
        reasons = []
        for one in explain.reasons(self._dispatcher.engine, session.session):
            what = one.what.replace(hidden, "another user's job") if hidden else one.what
            reasons.append(Reason(what=what, needed=one.needed, free=one.free, unit=one.unit, advice=one.advice))
        return reasons

    def _changes(self, device: DeviceSnapshot, session: SessionSnapshot, caller: Caller) -> list[WhatIf]:
        if session.state not in (SessionState.ARRIVING, SessionState.WAITING):
            return []
        changes = [self._try("no change, other jobs reach their boundaries", session)]
        for other in [one for one in device.sessions if one.job != session.job][:OTHERS_TRIED_MAX]:
            facts = self._dispatcher.state.sessions.get(other.session)
            name = f"job {other.job}" if facts is not None and caller.may_see(facts.uid) else "another user's job"
            changes.append(self._try(f"{name} ends", session, events.SessionLeft(other.session)))
        if session.state is SessionState.WAITING:
            limits = self._dispatcher.engine.device_views[device.device].limits
            for policy in sorted(set(POLICIES) - {device.policy}):
                change = events.LimitsChanged(device.device, replace(limits, policy=policy))
                changes.append(self._try(f"policy {policy}", session, change))
        if device.is_drained:
            changes.append(self._try("the device is resumed", session, events.DeviceResumed(device.device)))
        return changes

    def _try(self, description: str, session: SessionSnapshot, *changes: events.Event) -> WhatIf:
        boundary_count = explain.boundaries_until_served(
            self._dispatcher.engine, session.session, changes, self._dispatcher.clock()
        )
        return WhatIf(change=description, is_served=boundary_count is not None, boundary_count=boundary_count)
