"""The environment variables that make a job load Salus and reach this daemon."""

from __future__ import annotations

from pathlib import Path

from nodedaemon.core.types import DeviceId
from nodedaemon.service.control.configuration import ActiveConfiguration
from nodedaemon.service.devices.directory import DeviceDirectory
from nodedaemon.service.devices.mps import MpsServers

ADAPTOR_DIR = Path(__file__).resolve().parents[2] / "job"


class JobEnvironment:
    """`preload_uids`: users with a framework whose calls cannot be patched. Their next jobs get the preload library."""

    def __init__(self, configuration: ActiveConfiguration, devices: DeviceDirectory, mps: MpsServers) -> None:
        self._configuration = configuration
        self._devices = devices
        self._mps = mps
        self.preload_uids: set[int] = set()

    async def variables(self, device: DeviceId, uid: int) -> dict[str, str]:
        """Variables for a job of `uid`. The caller puts PYTHONPATH and LD_PRELOAD before the user's own values."""
        daemon = self._configuration.settings.daemon
        adaptor_dir = Path(daemon.adaptor_dir) if daemon.adaptor_dir else ADAPTOR_DIR
        variables = {"SALUS_SOCKET": str(daemon.socket), "PYTHONPATH": str(adaptor_dir)}
        if uid in self.preload_uids:
            variables["LD_PRELOAD"] = str(adaptor_dir / "libsalus" / "libsalus-preload.so")
        return {
            **variables,
            **self._devices[device].job_environment(adaptor_dir),
            **await self._mps.environment(device, uid),
        }
