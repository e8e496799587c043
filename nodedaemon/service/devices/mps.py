"""MPS for a node with `ShareMode=mps`: one server per user, from the user's first job to the last.

MPS only adds concurrency between a user's lanes. If a server does not start, the job does not fail: it gets time
slices, and the log says why.
"""

from __future__ import annotations

import asyncio
import pwd
from collections.abc import Callable
from pathlib import Path

from nodedaemon.config.choices import ShareMode
from nodedaemon.core.errors import OperatingError
from nodedaemon.core.types import DeviceId
from nodedaemon.drivers.mps import MpsLimits, MpsServer
from nodedaemon.service.shell import Shell
from nodedaemon.wire.logs import log


class MpsServers:
    def __init__(self, shell: Shell, make: Callable[[int, int, Path], MpsServer] = MpsServer) -> None:
        self._shell = shell
        self._make = make
        self._servers: dict[int, MpsServer] = {}

    async def environment(self, device: DeviceId, uid: int) -> dict[str, str]:
        """Variables that connect a job of `uid` on that device to its server; empty without MPS."""
        daemon = self._shell.configuration.for_device(device).daemon
        if not self._shell.devices[device].capabilities.runs_mps or daemon.share_mode is not ShareMode.MPS:
            return {}
        server = self._servers.get(uid) or self._make(uid, _gid(uid), self._shell.configuration.run_directory)
        limits = MpsLimits(daemon.mps_thread_percent, daemon.mps_pinned_bytes, len(self._gpus()))
        try:
            await asyncio.to_thread(server.start, tuple(self._gpus()), limits)
        except OperatingError as error:
            log.error("MPS not started, the job gets time slices", uid=uid, device=device, why=str(error))
            return {}
        self._servers[uid] = server
        return server.environment(limits)

    async def stop_unused(self) -> None:
        """Stop the servers of users without a job: while one runs, other users' clients have to wait."""
        wanted = {job.uid for job in self._shell.dispatcher.state.jobs.values() if not job.is_ended}
        for uid in [uid for uid in self._servers if uid not in wanted]:
            server = self._servers.pop(uid)
            try:
                await asyncio.to_thread(server.stop)
            except OperatingError as error:
                log.error("MPS not stopped", uid=uid, why=str(error))

    def _gpus(self) -> list[DeviceId]:
        return [uuid for uuid, device in self._shell.devices.items() if device.capabilities.runs_mps]


def _gid(uid: int) -> int:
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return uid
