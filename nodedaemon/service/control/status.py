"""What `salus status` and `salus top` show: the engine's snapshot with the names of jobs, users and devices.

Users see all details of their own jobs, and only the load of other users' jobs.
"""

from __future__ import annotations

import os
from typing import Any

from nodedaemon.core.fairness import jain
from nodedaemon.core.state.sessions import SessionState
from nodedaemon.core.state.snapshots import DeviceSnapshot, EngineSnapshot, SessionSnapshot
from nodedaemon.service.control.access import Caller
from nodedaemon.service.control.administration import Administration
from nodedaemon.service.control.why import WhyView
from nodedaemon.service.devices.lanes import LaneAllocator
from nodedaemon.service.devices.readings import DeviceReadings
from nodedaemon.service.journal.dispatcher import Dispatcher
from nodedaemon.service.node import NodeIdentity
from nodedaemon.service.sessions.recovery import Recovery
from nodedaemon.service.shell import Shell
from nodedaemon.service.usage.ledger import Ledger
from nodedaemon.wire.control import DaemonStatus, DeviceStatus, LaneProcess, LaneStatus, NodeStatus, SessionStatus
from nodedaemon.wire.users import user_name


class DaemonView:
    """The state of salusd itself."""

    def __init__(
        self,
        node: NodeIdentity,
        dispatcher: Dispatcher,
        ledger: Ledger,
        recovery: Recovery,
        administration: Administration,
    ) -> None:
        self.node = node
        self._dispatcher = dispatcher
        self._ledger = ledger
        self._recovery = recovery
        self._administration = administration
        self._started_utc_ns = node.clock.utc_ns()

    def ping(self) -> dict[str, Any]:
        return {"ok": True, "version": self.node.version, "pid": os.getpid()}

    def status(self, caller: Caller) -> DaemonStatus:
        journal = self._dispatcher.journal
        return DaemonStatus(
            version=self.node.version,
            pid=os.getpid(),
            started_utc_ns=self._started_utc_ns,
            event_count=self._dispatcher.event_count,
            journal_fault=journal.fault if journal is not None else "",
            spool_records=self._ledger.spool.record_count,
            spool_dropped=sum(self._ledger.spool.dropped.values()),
            is_database_up=self._ledger.is_up,
            database_error=self._ledger.last_error if caller.is_operator else "",
            is_gathering=self._recovery.is_gathering,
            reload_error=self._administration.reload_error if caller.is_operator else "",
        )


class StatusView:
    def __init__(
        self, shell: Shell, daemon: DaemonView, readings: DeviceReadings, lanes: LaneAllocator, why: WhyView
    ) -> None:
        self._shell = shell
        self._dispatcher = shell.dispatcher
        self.daemon = daemon
        self._readings = readings
        self._lanes = lanes
        self._why = why

    def status(self, caller: Caller, job: str = "") -> NodeStatus:
        """The status of the node; with `job`, only the sessions of that job."""
        node, snapshot = self.daemon.node, self._dispatcher.engine.snapshot()
        return NodeStatus(
            node=node.name,
            cluster=node.cluster,
            now_utc_ns=node.clock.utc_ns(),
            daemon=self.daemon.status(caller),
            devices=[self._device(device) for device in snapshot.devices],
            lanes=self._lane_list(snapshot, caller),
            sessions=self._session_list(snapshot, caller, job),
        )

    def _device(self, snapshot: DeviceSnapshot) -> DeviceStatus:
        device = self._shell.devices[snapshot.device]
        reading = self._readings.latest.get(snapshot.device)
        pids = {facts.process.pid for facts in self._dispatcher.state.sessions.values()}
        foreign_bytes = None
        if reading is not None and device.capabilities.lists_processes:
            foreign_bytes = sum(one.used_bytes for one in reading.processes if one.pid not in pids)
        shares = [share for _, share, entitled in _shares(snapshot) if entitled]
        waiting_count = sum(1 for one in snapshot.sessions if one.state is SessionState.WAITING)
        return DeviceStatus(
            device=snapshot.device,
            index=device.index,
            name=device.name,
            model=device.model,
            kind=device.kind,
            policy=snapshot.policy,
            capacity_bytes=snapshot.capacity_bytes,
            persistent_bytes=snapshot.persistent_bytes,
            lane_bytes=snapshot.held_bytes,
            free_bytes=snapshot.free_bytes,
            foreign_bytes=foreign_bytes,
            used_bytes=reading.used_bytes if reading is not None else None,
            busy_permille=reading.busy_permille if reading is not None else None,
            is_drained=snapshot.is_drained,
            drain_reason=snapshot.drain_reason or "",
            lost_reason=snapshot.lost_reason,
            session_count=len(snapshot.sessions),
            waiting_count=waiting_count + len(snapshot.arrivals),
            jain=round(jain(shares), 4) if len(shares) > 1 and any(shares) else None,
        )

    def _lane_list(self, snapshot: EngineSnapshot, caller: Caller) -> list[LaneStatus]:
        return [
            LaneStatus(
                lane=lane.lane,
                device=device.device,
                state=lane.state,
                size_bytes=lane.held_bytes,
                held_bytes=self._lanes.held_bytes(lane.lane),
                holder=lane.holder,
                sessions=list(lane.sessions),
                domain=lane.domain if caller.is_operator else "",
                kept_by=[
                    LaneProcess(pid=one.pid, user=user_name(one.uid))
                    for one in self._lanes.unattached(lane.lane)
                    if caller.may_see(one.uid)
                ],
            )
            for device in snapshot.devices
            for lane in device.lanes
        ]

    def _session_list(self, snapshot: EngineSnapshot, caller: Caller, job: str) -> list[SessionStatus]:
        return [
            self._session(device, session, (share, entitled), caller)
            for device in snapshot.devices
            for session, share, entitled in _shares(device)
            if not job or session.job == job
        ]

    def _session(
        self, device: DeviceSnapshot, session: SessionSnapshot, shares: tuple[int, int], caller: Caller
    ) -> SessionStatus:
        facts = self._dispatcher.state.sessions.get(session.session)
        live = self._shell.roster.get(session.session)
        is_visible = caller.may_see(facts.uid if facts is not None else -1)
        job = self._dispatcher.state.jobs.get(session.job) if is_visible else None
        is_waiting = session.state in (SessionState.WAITING, SessionState.ARRIVING)
        since_ns = session.wanted_ns if session.state is SessionState.WAITING else (facts.start_mono_ns if facts else 0)
        reasons = self._why.reasons(device, session, caller)
        return SessionStatus(
            session=session.session,
            job=session.job if is_visible else "",
            user=job.user if job is not None else "",
            name=job.name if job is not None else "",
            device=device.device,
            lane=session.lane,
            state=session.state,
            job_class=str(session.job_class),
            weight=session.weight,
            persistent_bytes=session.persistent_bytes,
            ephemeral_bytes=session.ephemeral_bytes,
            own_bytes=(live.own_bytes_max or None) if live is not None and is_visible else None,
            service_ns=session.service_ns,
            share_permille=shares[0],
            entitled_permille=shares[1],
            waited_ns=session.waited_ns,
            waiting_ns=max(0, self._dispatcher.clock() - since_ns) if is_waiting else 0,
            iteration_count=session.iteration_count,
            handover_count=session.handover_count,
            is_gated=facts.view.is_gated if facts is not None else True,
            is_stopped=session.is_stopped,
            is_connected=live is not None and live.connection is not None,
            pid=facts.process.pid if facts is not None and is_visible else 0,
            reason=reasons[0].what if reasons else "",
        )


def _shares(device: DeviceSnapshot) -> list[tuple[SessionSnapshot, int, int]]:
    """Each session with its share of the service so far and the share that its weight entitles it to, in permille."""
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
