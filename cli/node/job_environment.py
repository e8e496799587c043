"""The environment of a job of `salus run`: the user's own, and the variables that salusd may add.

The job runs with the user's rights, so the daemon's answer is checked. The command fails if a variable is not in the
list, or if its value does not match this installation and its configuration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from nodedaemon.config import Settings
from nodedaemon.core.errors import OperatingError
from nodedaemon.service.paths import adaptor_dir
from nodedaemon.wire.trust import is_trusted

Check = Callable[[str], bool]

# These values are put in front of the user's own, so that both take effect.
PREPENDED = {"PYTHONPATH": ":", "LD_PRELOAD": " "}


def environment_of(added: Iterable[str], user: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """The user's environment with the variables that salusd adds. Raises `OperatingError` if it may not add one."""
    checks = _checks(settings)
    environment = dict(user)
    for entry in added:
        name, _, value = entry.partition("=")
        if name not in checks or not checks[name](value):
            raise OperatingError(
                f"run refused: salusd answers with {name}={value!r}, which this installation does not use; "
                "use the salus command and the configuration of that salusd"
            )
        if name in PREPENDED and user.get(name):
            value += PREPENDED[name] + user[name]
        if name == "OMP_NUM_THREADS" and user.get(name):
            continue
        environment[name] = value
    return environment


def _checks(settings: Settings) -> dict[str, Check]:
    """The variables that salusd may set, each with a check of its value. See nodedaemon/service/jobs/environment.py."""
    adaptor = adaptor_dir(settings)
    libraries = {str(adaptor / "libsalus" / name) for name in ("libsalus-preload.so", "cuda/libcuda.so.1")}
    run_directory = Path(settings.daemon.socket).parent
    return {
        "SALUS_SOCKET": settings.daemon.socket.__eq__,
        "PYTHONPATH": str(adaptor).__eq__,
        "LD_PRELOAD": libraries.__contains__,
        "SALUS_CUDA_DRIVER": _is_trusted_file,
        "OMP_NUM_THREADS": _matches(r"\d{1,6}"),
        "CUDA_MPS_PIPE_DIRECTORY": _matches(rf"{re.escape(str(run_directory))}/mps-\d+/pipe"),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": _matches(r"\d{1,3}"),
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": _matches(r"\d+=\d+M(,\d+=\d+M)*"),
    }


def _matches(pattern: str) -> Check:
    return lambda value: re.fullmatch(pattern, value, re.ASCII) is not None


def _is_trusted_file(value: str) -> bool:
    """Whether the value names NVIDIA's library: a file that root or the user installed."""
    path = Path(value)
    return path.is_absolute() and path.is_file() and is_trusted(path.stat().st_uid)
