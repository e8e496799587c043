"""The environment variables that make a job load Salus and reach this daemon."""

from __future__ import annotations

from nodedaemon.core.types import DeviceId
from nodedaemon.service.devices.mps import MpsServers
from nodedaemon.service.paths import adaptor_dir
from nodedaemon.service.shell import Shell


class JobEnvironment:
    """`preload_uids`: users with a framework whose calls cannot be patched. Their next jobs get the preload library."""

    def __init__(self, shell: Shell, mps: MpsServers) -> None:
        self._shell = shell
        self._mps = mps
        self.preload_uids: set[int] = set()

    async def variables(self, device: DeviceId, uid: int) -> dict[str, str]:
        """Variables for a job of `uid`. The caller puts PYTHONPATH and LD_PRELOAD before the user's own values."""
        settings = self._shell.configuration.settings
        directory = adaptor_dir(settings)
        variables = {"SALUS_SOCKET": settings.daemon.socket, "PYTHONPATH": str(directory)}
        if uid in self.preload_uids:
            variables["LD_PRELOAD"] = str(directory / "libsalus" / "libsalus-preload.so")
        return {
            **variables,
            **self._shell.devices[device].job_environment(directory),
            **await self._mps.environment(device, uid),
        }
