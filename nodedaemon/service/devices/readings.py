"""Reads every device, and finds lost and recovered devices, foreign processes, and the memory of each session.

A device that may be slow to answer is read in a thread with a time-out. A device that does not answer is reported lost;
the next good reading reports it recovered.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

from nodedaemon.core import events
from nodedaemon.core.errors import OperatingError
from nodedaemon.core.types import DeviceId, JobId, SessionId
from nodedaemon.drivers.device import DeviceDriver, Reading
from nodedaemon.service.journal.state import SessionFacts
from nodedaemon.service.shell import Shell
from nodedaemon.wire.logs import log


class DeviceReadings:
    """`latest` holds the last good reading of each device."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._dispatcher = shell.dispatcher
        self._foreign_bytes: dict[DeviceId, int] = {}
        self._overrun_bytes: dict[SessionId, int] = {}
        self._threads: dict[DeviceId, ThreadPoolExecutor] = {}
        self._hung: set[DeviceId] = set()
        self.latest: dict[DeviceId, Reading] = {}

    async def sample(self) -> None:
        for device in self._shell.devices.values():
            await self._sample_device(device)

    async def _sample_device(self, device: DeviceDriver) -> None:
        sessions = [facts for facts in self._dispatcher.state.sessions.values() if facts.device == device.uuid]
        pids = [facts.process.pid for facts in sessions if facts.process.pid]
        try:
            reading = await self._read(device, pids)
        except (OperatingError, TimeoutError) as error:
            self._mark_lost(device.uuid, str(error) or "it does not answer")
            return
        self.latest[device.uuid] = reading
        for fault in reading.faults:
            self._shell.recorder.report_device("xid", device.uuid, fault)
        if self._is_lost(device.uuid):
            log.info("device recovered", device=device.uuid)
            self._dispatcher.submit(events.DeviceRecovered(device.uuid))
        self._report_foreign_processes(device, reading, pids)
        used_bytes = {process.pid: process.used_bytes for process in reading.processes}
        for facts in self._dispatcher.state.sessions.values():
            live = self._shell.roster.get(facts.session)
            if live is not None and facts.device == device.uuid:
                live.own_bytes_max = max(live.own_bytes_max, used_bytes.get(facts.process.pid, 0))
        self._charge_further_sessions(device.uuid)

    def _charge_further_sessions(self, device: DeviceId) -> None:
        """Charge a job with several sessions for what they hold beyond its charge.

        Further sessions of a job arrive with no bytes of their own, so the excess goes to the last one.
        """
        sessions = self._dispatcher.state.sessions
        jobs: dict[JobId, list[SessionFacts]] = {}
        for facts in sessions.values():
            if facts.device == device and facts.process.pid and facts.view.is_admitted and not facts.view.is_leaving:
                jobs.setdefault(facts.job, []).append(facts)
        self._overrun_bytes = {session: size for session, size in self._overrun_bytes.items() if session in sessions}
        for members in jobs.values():
            if len(members) < 2:
                continue
            lives = [live for facts in members if (live := self._shell.roster.get(facts.session)) is not None]
            excess_bytes = sum(live.own_bytes_max for live in lives) - sum(
                facts.view.persistent_bytes for facts in members
            )
            last = members[-1]
            # After an allowed overrun, report again only when the excess is a quarter of the last total.
            if excess_bytes > 0 and excess_bytes > self._overrun_bytes.get(last.session, 0) // 4:
                wanted_bytes = last.view.persistent_bytes + excess_bytes
                self._overrun_bytes[last.session] = wanted_bytes
                self._dispatcher.submit(events.SessionOverran(last.session, wanted_bytes, 0))

    def _report_foreign_processes(self, device: DeviceDriver, reading: Reading, pids: list[int]) -> None:
        """Report processes outside Salus when they appear, and again when their memory grows by a quarter."""
        ours = {*pids, os.getpid()}
        foreign = [process for process in reading.processes if process.pid not in ours]
        foreign_bytes = sum(process.used_bytes for process in foreign)
        reported_bytes = self._foreign_bytes.get(device.uuid, 0)
        if foreign_bytes > reported_bytes + reported_bytes // 4:
            foreign_pids = [process.pid for process in foreign]
            log.warning("foreign processes on the device", device=device.uuid, pids=foreign_pids, bytes=foreign_bytes)
            detail = f"pids {foreign_pids[:16]} hold {foreign_bytes} bytes"
            self._shell.recorder.report_device("foreign_memory", device.uuid, detail)
            self._foreign_bytes[device.uuid] = foreign_bytes
        elif not foreign_bytes:
            self._foreign_bytes.pop(device.uuid, None)

    async def _read(self, device: DeviceDriver, pids: list[int]) -> Reading:
        if not device.is_slow:
            return device.read(pids)
        thread = self._threads.get(device.uuid)
        if thread is None or device.uuid in self._hung:
            # A call that hangs keeps its thread; the next reading uses another one.
            thread = self._threads[device.uuid] = ThreadPoolExecutor(1, thread_name_prefix="reading")
        async with asyncio.timeout(self._shell.configuration.settings.readings.timeout_ns / 1e9):
            try:
                reading = await asyncio.get_running_loop().run_in_executor(thread, device.read, pids)
            except asyncio.CancelledError:
                self._hung.add(device.uuid)
                raise
        self._hung.discard(device.uuid)
        return reading

    async def measure(self, device: DeviceId, pid: int) -> int:
        """Bytes that a process holds on a device now; 0 if the device does not answer."""
        try:
            reading = await self._read(self._shell.devices[device], [pid])
        except (OperatingError, TimeoutError):
            return 0
        return sum(process.used_bytes for process in reading.processes if process.pid == pid)

    def _mark_lost(self, device: DeviceId, reason: str) -> None:
        if not self._is_lost(device):
            log.error("device lost", device=device, why=reason)
            self._dispatcher.submit(events.DeviceLost(device, reason))

    def _is_lost(self, device: DeviceId) -> bool:
        return self._dispatcher.engine.device_views[device].lost_reason is not None

    def close(self) -> None:
        for thread in self._threads.values():
            thread.shutdown(wait=False, cancel_futures=True)
