"""The directories of the daemon and its limits as a process."""

from __future__ import annotations

import fcntl
import os
import resource
from pathlib import Path

from nodedaemon.config import Settings
from nodedaemon.core.errors import OperatingError


def adaptor_dir(settings: Settings) -> Path:
    """The directory of the libraries that jobs load: `AdaptorDir`, or the one of this release."""
    return Path(settings.daemon.adaptor_dir or Path(__file__).resolve().parents[1] / "job")


def lock_state(path: Path) -> int:
    """Lock the state directory until this process ends, however it ends."""
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise OperatingError(f"start refused: {path}: another salusd uses this state directory") from None
    return descriptor


def raise_descriptor_limit() -> None:
    """Raise the soft limit on open files. The usual 1024 is meant for programs that call select().

    A session needs about five descriptors.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 65_536) if hard != resource.RLIM_INFINITY else 65_536
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        raise OperatingError(f"raise open-file limit: {error}; set LimitNOFILE in the unit") from error
