"""Takes readings of every device, and looks after what no event tells of.

A device that is slow to answer is read in a thread with a time-out; one that does not answer is reported lost and comes
back by itself. Stopped processes, idle holders and memory that grows back are looked for here, as often as somebody
waits for the answer: a node where nothing is revoked is looked at every `SampleInterval` only.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from nodedaemon.core import events
from nodedaemon.core.commands import Command
from nodedaemon.core.errors import OperatingError
from nodedaemon.core.events import Event
from nodedaemon.core.types import DeviceId, JobId, SessionId
from nodedaemon.drivers.device import Device, Reading
from nodedaemon.drivers.process import ProcessState
from nodedaemon.service.devices.lanes import LaneKeeper
from nodedaemon.service.journal.dispatcher import Dispatcher
from nodedaemon.service.journal.state import SessionFacts
from nodedaemon.service.sessions.executor import Executor
from nodedaemon.service.sessions.roster import Roster

#: Between two looks at holders while somebody waits: an idle or stopped one keeps others waiting.
WATCH_INTERVAL_S = 0.02


class Sampler:
    def __init__(
        self,
        dispatcher: Dispatcher,
        roster: Roster,
        lanes: LaneKeeper,
        executor: Executor,
        devices: Mapping[DeviceId, Device],
        *,
        loop: asyncio.AbstractEventLoop,
        timeout_s: Callable[[], float],
        sweep: Callable[[], None],
        report_device: Callable[[DeviceId, str], None],
        report_strangers: Callable[[DeviceId, str], None],
        log: Any,
    ) -> None:
        self._dispatcher = dispatcher
        self._roster = roster
        self._lanes = lanes
        self._executor = executor
        self._devices = devices
        self._loop = loop
        self._timeout_s = timeout_s
        self._sweep = sweep
        self._report_device = report_device
        self._report_strangers = report_strangers
        self._foreign_bytes: dict[DeviceId, int] = {}
        self._further_bytes: dict[SessionId, int] = {}
        self._log = log
        self._threads: dict[DeviceId, ThreadPoolExecutor] = {}
        self._hung: set[DeviceId] = set()
        self._lost: set[DeviceId] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.readings: dict[DeviceId, Reading] = {}
        self.failure_count = 0

    async def run(self, interval_s: Callable[[], float]) -> None:
        while True:
            await self.sample()
            await asyncio.sleep(interval_s())

    async def sample(self) -> None:
        for device in self._devices.values():
            await self._read(device)
        self.look_at_processes()
        self._lanes.watch()
        self._sweep()

    async def _read(self, device: Device) -> None:
        pids = [
            facts.process.pid
            for facts in self._dispatcher.state.sessions.values()
            if facts.device == device.uuid and facts.process.pid
        ]
        try:
            reading = await self._call(device, pids)
        except (OperatingError, TimeoutError) as error:
            self.failure_count += 1
            self._mark_lost(device.uuid, str(error) or "it does not answer")
            return
        self.readings[device.uuid] = reading
        for fault in reading.faults:
            self._report_device(device.uuid, fault)
        if device.uuid in self._lost:
            self._lost.discard(device.uuid)
            self._log.info("device recovered", device=device.uuid)
            self._dispatcher.submit(events.DeviceRecovered(device.uuid))
        self._look_for_strangers(device, reading, pids)
        own = {process.pid: process.used_bytes for process in reading.processes}
        for facts in self._dispatcher.state.sessions.values():
            live = self._roster.get(facts.session)
            if live is not None and facts.device == device.uuid:
                live.own_bytes_max = max(live.own_bytes_max, own.get(facts.process.pid, 0))
        self._charge_further(device.uuid)

    def _charge_further(self, device: DeviceId) -> None:
        """A job's further sessions came in on what the job was charged: what they hold beyond it is charged now."""
        jobs: dict[JobId, list[SessionFacts]] = {}
        for facts in self._dispatcher.state.sessions.values():
            if facts.device == device and facts.process.pid and facts.view.is_admitted and not facts.view.is_leaving:
                jobs.setdefault(facts.job, []).append(facts)
        gone = set(self._further_bytes) - set(self._dispatcher.state.sessions)
        for session in gone:
            del self._further_bytes[session]
        for mates in jobs.values():
            if len(mates) < 2:
                continue
            lives = [live for facts in mates if (live := self._roster.get(facts.session)) is not None]
            lack_bytes = sum(live.own_bytes_max for live in lives) - sum(facts.view.persistent_bytes for facts in mates)
            last = mates[-1]
            # Told once for every quarter more: a device without room would else refuse it at every reading.
            told_bytes = self._further_bytes.get(last.session, 0)
            if lack_bytes > told_bytes // 4 and lack_bytes > 0:
                wanted_bytes = last.view.persistent_bytes + lack_bytes
                self._further_bytes[last.session] = wanted_bytes
                self._dispatcher.submit(events.SessionOverran(last.session, wanted_bytes, 0))

    def _look_for_strangers(self, device: Device, reading: Reading, pids: list[int]) -> None:
        """Processes outside Salus on a device: told when they come and when they grow by a quarter."""
        known = {*pids, os.getpid()}
        foreign_bytes = sum(process.used_bytes for process in reading.processes if process.pid not in known)
        told_bytes = self._foreign_bytes.get(device.uuid, 0)
        if foreign_bytes > told_bytes + told_bytes // 4:
            strangers = [process.pid for process in reading.processes if process.pid not in known]
            self._log.warning(
                "foreign processes on the device", device=device.uuid, pids=strangers, bytes=foreign_bytes
            )
            self._report_strangers(device.uuid, f"pids {strangers[:16]} hold {foreign_bytes} bytes")
            self._foreign_bytes[device.uuid] = foreign_bytes
        elif not foreign_bytes:
            self._foreign_bytes.pop(device.uuid, None)

    async def _call(self, device: Device, pids: list[int]) -> Reading:
        if not device.is_slow:
            return device.read(pids)
        thread = self._threads.get(device.uuid)
        if thread is None or device.uuid in self._hung:
            # A call that hangs keeps its thread; it is left alone and the next try gets another, once a reading.
            thread = self._threads[device.uuid] = ThreadPoolExecutor(1, thread_name_prefix="reading")
        async with asyncio.timeout(self._timeout_s()):
            try:
                reading = await self._loop.run_in_executor(thread, device.read, pids)
            except asyncio.CancelledError:
                self._hung.add(device.uuid)
                raise
        self._hung.discard(device.uuid)
        return reading

    async def measure(self, device: DeviceId, pid: int) -> int:
        """What a process holds of a device now; 0 where the device does not say."""
        try:
            reading = await self._call(self._devices[device], [pid])
        except (OperatingError, TimeoutError):
            return 0
        return sum(process.used_bytes for process in reading.processes if process.pid == pid)

    def _mark_lost(self, device: DeviceId, reason: str) -> None:
        if device in self._lost:
            return
        self._lost.add(device)
        self._log.error("device lost", device=device, why=reason)
        self._dispatcher.submit(events.DeviceLost(device, reason))

    def recall_lost(self) -> None:
        """After a restart: devices that the engine holds for lost are to be recovered by the next good reading."""
        for device in self._dispatcher.engine.snapshot().devices:
            if device.lost_reason is not None:
                self._lost.add(device.device)

    # Holders that keep others waiting

    def watch(self, event: Event, _commands: list[Command], _now_ns: int) -> None:
        if isinstance(event, events.GrantWanted):
            self.watch_soon()

    def watch_soon(self) -> None:
        """Somebody waits, was revoked, or a lane is being released: look soon, and go on while it lasts."""
        if self._timer is None:
            self._timer = self._loop.call_later(WATCH_INTERVAL_S, self._watch)

    def _watch(self) -> None:
        self._timer = None
        is_needed = False
        everybody = list(self._dispatcher.state.sessions.values())
        # A policy may well prefer the holder to all who wait; while it is idle it is nobody's to prefer.
        wanted = {facts.device for facts in everybody if facts.view.is_waiting}
        for facts in everybody:
            live = self._roster.get(facts.session)
            is_kept = not facts.view.is_revoked and (facts.device not in wanted or not facts.view.is_gated)
            if live is None or facts.view.epoch is None or is_kept:
                continue
            # Also where the grant came back just now: who got it may be idle soon, and no event would tell.
            is_needed = True
            if self._executor.take_idle(live, facts) or self._executor.settle_over(live, facts):
                continue
            if facts.view.is_revoked:
                self._look_at(facts.session)
        if self._lanes.is_releasing:
            self._lanes.recheck()
            is_needed = is_needed or self._lanes.is_releasing
        if is_needed:
            self.watch_soon()

    def look_at_processes(self) -> None:
        """See who was stopped or continued since the last look."""
        for facts in list(self._dispatcher.state.sessions.values()):
            # Whether one that neither holds nor wants anything is stopped matters to nobody.
            if facts.view.epoch is not None or facts.view.is_waiting or facts.view.is_stopped:
                self._look_at(facts.session)

    def _look_at(self, session: Any) -> None:
        facts, live = self._dispatcher.state.sessions.get(session), self._roster.get(session)
        if facts is None or live is None or live.process is None or facts.view.is_leaving or not facts.view.is_admitted:
            return
        state = live.process.state()
        if state is ProcessState.STOPPED and not facts.view.is_stopped:
            self._log.info("session stopped", job=facts.job, session=session, device=facts.device)
            self._dispatcher.submit(events.SessionStopped(session))
        elif state is ProcessState.RUNNING and facts.view.is_stopped:
            self._log.info("session continued", job=facts.job, session=session, device=facts.device)
            self._dispatcher.submit(events.SessionContinued(session))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for thread in self._threads.values():
            thread.shutdown(wait=False, cancel_futures=True)
