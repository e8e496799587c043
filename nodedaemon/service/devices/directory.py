"""Finds a device of this node by the name that a user, Slurm or a job gives, or by how many sessions it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from nodedaemon.core.errors import RequestError
from nodedaemon.core.types import DeviceId
from nodedaemon.drivers.device import DeviceDriver
from nodedaemon.service.journal.state import JobFacts, ShellState


class DeviceDirectory(Mapping[DeviceId, DeviceDriver]):
    def __init__(self, devices: Mapping[DeviceId, DeviceDriver], state: ShellState) -> None:
        self._devices = devices
        self._state = state

    def __getitem__(self, device: DeviceId) -> DeviceDriver:
        return self._devices[device]

    def __iter__(self) -> Iterator[DeviceId]:
        return iter(self._devices)

    def __len__(self) -> int:
        return len(self._devices)

    def find(self, name: str) -> DeviceId:
        """A device by uuid, name or index. Raises `RequestError` that lists the devices of the node."""
        for device in self._devices.values():
            if name in (device.uuid, device.name, str(device.index)):
                return device.uuid
        present = ", ".join(f"{device.index} {device.name}" for device in self._devices.values())
        raise RequestError(f"device unknown: {name}: this node has {present}")

    def of_job(self, job: JobFacts, name: str) -> DeviceId:
        """The device of the job that a process names; the job's first device if it names none of them."""
        try:
            device = self.find(name) if name else job.device
        except RequestError:
            return job.device
        return device if device in job.devices else job.device

    def with_fewest_sessions(self) -> DeviceId:
        counts = Counter(session.device for session in self._state.sessions.values())
        return min(self._devices, key=lambda uuid: (counts[uuid], self._devices[uuid].index))
