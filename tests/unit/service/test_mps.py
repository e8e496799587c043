"""MPS starts with a user's first job and stops with the last; a job runs even if MPS does not start."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from structlog.testing import capture_logs

from nodedaemon.config.choices import ShareMode
from nodedaemon.core.errors import OperatingError
from nodedaemon.core.types import DeviceId
from nodedaemon.drivers.device import Capabilities
from nodedaemon.drivers.mps import MpsLimits
from nodedaemon.service.devices.mps import MpsServers

GPU, HOST = DeviceId("GPU-1"), DeviceId("HOST-1")


class Server:
    """A control daemon that remembers what was asked of it."""

    def __init__(self, uid: int, *, is_broken: bool = False) -> None:
        self.uid = uid
        self.calls: list[str] = []
        self._is_broken = is_broken

    def start(self, devices: tuple[DeviceId, ...], limits: MpsLimits) -> None:
        if self._is_broken:
            raise OperatingError("start MPS: not found; install it")
        self.calls.append(f"start {devices} {limits}")

    def stop(self) -> None:
        self.calls.append("stop")

    def environment(self, limits: MpsLimits) -> dict[str, str]:
        return {"percent": str(limits.thread_percent), "pinned": str(limits.pinned_bytes)}


def make(mode: ShareMode, jobs: dict[str, Any], *, is_broken: bool = False) -> tuple[MpsServers, list[Server]]:
    servers: list[Server] = []

    def start(uid: int, _gid: int, _directory: Path) -> Any:
        servers.append(Server(uid, is_broken=is_broken))
        return servers[-1]

    settings: Any = SimpleNamespace(daemon=SimpleNamespace(share_mode=mode, mps_thread_percent=50, mps_pinned_bytes=7))
    devices: Any = {
        GPU: SimpleNamespace(capabilities=Capabilities(runs_mps=True)),
        HOST: SimpleNamespace(capabilities=Capabilities()),
    }
    shell: Any = SimpleNamespace(
        configuration=SimpleNamespace(for_device=lambda _: settings, run_directory=Path("run")),
        devices=devices,
        dispatcher=SimpleNamespace(state=SimpleNamespace(jobs=jobs)),
    )
    return MpsServers(shell, make=start), servers


def test_a_server_is_started_for_its_user_and_stopped_after_the_last_job() -> None:
    jobs = {"1": SimpleNamespace(uid=0, is_ended=False)}
    mps, servers = make(ShareMode.MPS, jobs)
    assert asyncio.run(mps.environment(GPU, 0)) == {"percent": "50", "pinned": "7"}
    asyncio.run(mps.environment(GPU, 0))
    asyncio.run(mps.stop_unused())
    assert len(servers) == 1
    assert "stop" not in servers[0].calls
    jobs["1"].is_ended = True
    asyncio.run(mps.stop_unused())
    assert servers[0].calls[-1] == "stop"


def test_no_server_is_started_without_the_mode_or_on_a_host_device() -> None:
    assert asyncio.run(make(ShareMode.TIMESLICE, {})[0].environment(GPU, 0)) == {}
    assert asyncio.run(make(ShareMode.MPS, {})[0].environment(HOST, 0)) == {}


def test_a_job_gets_time_slices_if_mps_does_not_start() -> None:
    mps, _ = make(ShareMode.MPS, {}, is_broken=True)
    with capture_logs() as logged:
        assert asyncio.run(mps.environment(GPU, 0)) == {}
    assert [line["log_level"] for line in logged] == ["error"]
