"""Sessions whose record is lost, for example with the state directory: they are counted until their process ends.

Such a session continues by itself. It moves the contents of its lane into its own memory, so both are counted.
"""

from __future__ import annotations

import asyncio
from typing import Any

from nodedaemon.core.errors import SalusError
from nodedaemon.drivers.process import Process
from nodedaemon.service.devices.readings import DeviceReadings
from nodedaemon.service.jobs.identity import JobFinder
from nodedaemon.service.sessions.attach import SessionAttach
from nodedaemon.service.sessions.losses import SessionLosses
from nodedaemon.service.sessions.recovery import Recovery


class StraySessions:
    def __init__(
        self,
        attach: SessionAttach,
        finder: JobFinder,
        readings: DeviceReadings,
        recovery: Recovery,
        losses: SessionLosses,
        log: Any,
    ) -> None:
        self._attach = attach
        self._finder = finder
        self._readings = readings
        self._recovery = recovery
        self._losses = losses
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, process: Process, uid: int, lane_bytes: int) -> None:
        task = asyncio.get_running_loop().create_task(self._count(process, uid, lane_bytes))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _count(self, process: Process, uid: int, lane_bytes: int) -> None:
        try:
            await self._recovery.wait_gathered()
            job = await self._finder.find_job(process, uid)
            own_bytes = await self._readings.measure(job.device, process.pid)
            facts, live = self._attach.hold(job, job.device, process, own_bytes + lane_bytes)
        except SalusError as error:
            self._log.warning("session of a lost journal not counted", pid=process.pid, uid=uid, why=str(error))
            process.close()
            return
        live.watch_death(self._losses.on_death)
        self._log.warning(
            "session of a lost journal runs on by itself",
            job=facts.job,
            session=facts.session,
            bytes=facts.view.persistent_bytes,
        )
