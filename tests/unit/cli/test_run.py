"""`salus run`: the environment of the job, and its signature."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from typer.testing import CliRunner

from cli.main import app
from cli.node.job_environment import environment_of
from cli.node.run import signature_of
from nodedaemon.config.keys import Daemon, Settings
from nodedaemon.core.errors import OperatingError, RequestError
from nodedaemon.core.types import DeviceId
from nodedaemon.drivers.cuda import CudaDevice
from nodedaemon.drivers.host import HostDevice
from nodedaemon.drivers.mps import MpsLimits, MpsServer
from nodedaemon.service.jobs.environment import JobEnvironment
from tests.support.attacker import ATTACKER

SETTINGS = Settings(daemon=Daemon(socket="/run/salus/salusd.sock", adaptor_dir="/opt/job"))
PRELOAD = "/opt/job/libsalus/libsalus-preload.so"


def test_salus_prepends_to_the_users_variables_and_never_replaces_them() -> None:
    own = {"PYTHONPATH": "mine", "LD_PRELOAD": "mine.so", "HOME": "here", "OMP_NUM_THREADS": "3"}
    added = [
        "SALUS_SOCKET=/run/salus/salusd.sock", "PYTHONPATH=/opt/job", f"LD_PRELOAD={PRELOAD}", "OMP_NUM_THREADS=1",
    ]  # fmt: skip
    assert environment_of(added, own, SETTINGS) == {
        "SALUS_SOCKET": "/run/salus/salusd.sock",
        "PYTHONPATH": "/opt/job:mine",
        "LD_PRELOAD": f"{PRELOAD} mine.so",
        "HOME": "here",
        "OMP_NUM_THREADS": "3",
    }
    assert environment_of(["PYTHONPATH=/opt/job"], {}, SETTINGS) == {"PYTHONPATH": "/opt/job"}


@pytest.mark.parametrize(
    "entry",
    [
        "PATH=/evil", "BASH_ENV=/evil", "SALUS_LIBRARY=/evil.so", "", "=", "LD_PRELOAD", "LD_PRELOAD=/evil.so",
        f"LD_PRELOAD={PRELOAD} /evil.so", "LD_PRELOAD=/opt/job/libsalus/../../evil.so", "PYTHONPATH=/opt/job:/evil",
        "PYTHONPATH=", "SALUS_SOCKET=/tmp/evil", "SALUS_CUDA_DRIVER=/no/such/library", "SALUS_CUDA_DRIVER=evil.so",
        "OMP_NUM_THREADS=x", "CUDA_MPS_PIPE_DIRECTORY=/tmp/evil", "CUDA_MPS_PIPE_DIRECTORY=/run/salus/mps-1/../pipe",
    ],
)  # fmt: skip
def test_a_variable_that_salusd_may_not_set_ends_the_command(entry: str) -> None:
    with pytest.raises(OperatingError, match="run refused") as raised:
        environment_of([entry], {}, SETTINGS)
    assert "\n" not in str(raised.value)


def test_a_driver_of_another_user_is_refused(tmp_path: Path) -> None:
    library = tmp_path / "libcuda.so.1"
    library.touch()
    assert environment_of([f"SALUS_CUDA_DRIVER={library}"], {}, SETTINGS) == {"SALUS_CUDA_DRIVER": str(library)}
    os.chown(library, ATTACKER, ATTACKER)
    with pytest.raises(OperatingError, match="run refused"):
        environment_of([f"SALUS_CUDA_DRIVER={library}"], {}, SETTINGS)


def test_everything_that_salusd_sets_is_accepted(tmp_path: Path) -> None:
    """The variables come from the daemon's own code."""
    settings = replace(SETTINGS, daemon=replace(SETTINGS.daemon, adaptor_dir=str(tmp_path)))
    driver = tmp_path / "libsalus" / "cuda" / "libcuda.so.1"
    driver.parent.mkdir(parents=True)
    driver.touch()
    gpu: Any = SimpleNamespace(_driver_path=str(driver))
    host: Any = SimpleNamespace(cores=(0, 1))
    server = MpsServer(1000, 1000, Path(settings.daemon.socket).parent)
    mps: Any = SimpleNamespace(environment=AsyncMock(return_value=server.environment(MpsLimits(50, 7, 2))))
    configuration = SimpleNamespace(settings=settings)
    devices = {
        "gpu": SimpleNamespace(job_environment=lambda directory: CudaDevice.job_environment(gpu, directory)),
        "host": SimpleNamespace(job_environment=lambda directory: HostDevice.job_environment(host, directory)),
    }
    environment = JobEnvironment(cast("Any", SimpleNamespace(configuration=configuration, devices=devices)), mps)
    environment.preload_uids.add(1000)
    for device in devices:
        variables = asyncio.run(environment.variables(DeviceId(device), 1000))
        assert environment_of([f"{name}={value}" for name, value in variables.items()], {}, settings) == variables


def test_the_signature_covers_arguments_and_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("one")
    first = signature_of(["python", str(script), "--batch", "4"])
    assert first == signature_of(["/usr/bin/python3", str(script), "--batch", "4"])
    assert first != signature_of(["python", str(script), "--batch", "8"])
    script.write_text("two")
    assert first != signature_of(["python", str(script), "--batch", "4"])


@pytest.mark.parametrize("options", [["--policy", "best"], ["--persistent", "much"]])
def test_invalid_options_are_reported_before_anything_is_started(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.node.run._daemon", lambda *_: pytest.fail("a daemon was contacted"))
    result = CliRunner().invoke(app, ["run", *options, "--", "true"])
    assert isinstance(result.exception, RequestError)


def test_an_unknown_program_is_not_found() -> None:
    result = CliRunner().invoke(app, ["run", "--", "no-such-program-anywhere"])
    assert "no-such-program-anywhere" in str(result.exception)
