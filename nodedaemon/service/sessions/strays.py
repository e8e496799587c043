"""Sessions whose record is lost, for example with the state directory: they are counted until their process ends.

Such a session continues without Salus. It moves the contents of its lane to its own memory, so both are counted.
"""

from __future__ import annotations

from nodedaemon.core.errors import SalusError
from nodedaemon.drivers.process import Process
from nodedaemon.service.devices.readings import DeviceReadings
from nodedaemon.service.jobs.identity import JobFinder
from nodedaemon.service.sessions.attach import SessionAttach
from nodedaemon.service.sessions.recovery import Recovery
from nodedaemon.service.tasks import BackgroundTasks
from nodedaemon.wire.logs import log


class StraySessions:
    def __init__(self, attach: SessionAttach, finder: JobFinder, readings: DeviceReadings, recovery: Recovery) -> None:
        self._attach = attach
        self._finder = finder
        self._readings = readings
        self._recovery = recovery
        self.tasks = BackgroundTasks()

    def add(self, process: Process, uid: int, lane_bytes: int) -> None:
        self.tasks.start(self._count(process, uid, lane_bytes))

    async def _count(self, process: Process, uid: int, lane_bytes: int) -> None:
        try:
            await self._recovery.wait_gathered()
            job = await self._finder.find_job(process, uid)
            own_bytes = await self._readings.measure(job.device, process.pid)
            facts = self._attach.hold(job, job.device, process, own_bytes + lane_bytes)
        except SalusError as error:
            log.warning("session of a lost journal not counted", pid=process.pid, uid=uid, why=str(error))
            process.close()
            return
        log.warning(
            "session of a lost journal continues on its own",
            job=facts.job,
            session=facts.session,
            bytes=facts.view.persistent_bytes,
        )
