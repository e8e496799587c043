"""MPS for the users of a node with `ShareMode=mps`: one server a user, started with a first job, stopped with the last.

MPS only adds concurrency between a user's lanes. Where it cannot be started the job gets time slices, and the log says
why: a job never fails for it.
"""

from __future__ import annotations

import asyncio
import pwd
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nodedaemon.config import Settings
from nodedaemon.config.choices import ShareMode
from nodedaemon.core.errors import OperatingError
from nodedaemon.core.types import DeviceId
from nodedaemon.drivers.device import Device
from nodedaemon.drivers.mps import MpsLimits, MpsServer
from nodedaemon.service.journal.state import ShellState


class MpsServers:
    def __init__(
        self,
        state: ShellState,
        devices: Mapping[DeviceId, Device],
        settings: Callable[[DeviceId], Settings],
        run_directory: Path,
        *,
        make: Callable[[int, int, Path], MpsServer] = MpsServer,
        log: Any,
    ) -> None:
        self._state = state
        self._devices = devices
        self._settings = settings
        self._run_directory = run_directory
        self._make = make
        self._log = log
        self._servers: dict[int, MpsServer] = {}

    async def environment(self, device: DeviceId, uid: int) -> dict[str, str]:
        """What a job of `uid` on that device needs in its environment; empty without MPS."""
        daemon = self._settings(device).daemon
        if self._devices[device].kind != "cuda" or daemon.share_mode is not ShareMode.MPS:
            return {}
        server = self._servers.get(uid) or self._make(uid, _gid(uid), self._run_directory)
        limits = MpsLimits(daemon.mps_thread_percent, daemon.mps_pinned_bytes, len(self._gpus()))
        try:
            await asyncio.to_thread(server.start, tuple(self._gpus()), limits)
        except OperatingError as error:
            self._log.error("MPS not started, the job gets time slices", uid=uid, device=device, why=str(error))
            return {}
        self._servers[uid] = server
        return server.environment(limits)

    async def stop_unused(self) -> None:
        """Stop the servers of users that have no job left: an MPS server keeps other users' clients waiting."""
        wanted = {job.uid for job in self._state.jobs.values() if not job.is_ended}
        for uid in [uid for uid in self._servers if uid not in wanted]:
            server = self._servers.pop(uid)
            try:
                await asyncio.to_thread(server.stop)
            except OperatingError as error:
                self._log.error("MPS not stopped", uid=uid, why=str(error))

    def _gpus(self) -> list[DeviceId]:
        return [uuid for uuid, device in self._devices.items() if device.kind == "cuda"]


def _gid(uid: int) -> int:
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return uid
