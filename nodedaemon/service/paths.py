"""Creates the directories and sockets of the daemon, or refuses a path that is not safe.

A path is not safe if another user could have prepared it: it is a symbolic link, has another owner, or is in a
directory that others may write to. A socket that a dead daemon left is replaced. If the socket answers, a daemon runs
already.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import socket
import stat
from pathlib import Path

from nodedaemon.config import Settings
from nodedaemon.core.errors import OperatingError
from nodedaemon.wire.trust import require_own_directory

SOCKET_BACKLOG = 512


def prepare_directory(path: Path, mode: int) -> None:
    """Create the directory, or check that only its owner may write to it. Raises `OperatingError`."""
    with contextlib.suppress(FileExistsError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        path.mkdir(mode=mode)
        # The umask may have cleared bits that other users need to reach the socket.
        path.chmod(mode)
    require_own_directory(path)


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


def open_socket(path: Path, kind: socket.SocketKind) -> socket.socket:
    """Listen at `path` for every local user; the kernel identifies each of them. Raises `OperatingError`."""
    prepare_directory(path.parent, 0o755)
    _clear(path, kind)
    listener = socket.socket(socket.AF_UNIX, kind)
    try:
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen(SOCKET_BACKLOG)
    except OSError as error:
        listener.close()
        raise OperatingError(f"listen: {path}: {error.strerror or error}; check DaemonSocket and its length") from error
    return listener


def _clear(path: Path, kind: socket.SocketKind) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(found.st_mode):
        raise OperatingError(f"socket refused: {path}: it is a symbolic link; remove it")
    if not stat.S_ISSOCK(found.st_mode):
        raise OperatingError(f"socket refused: {path}: it is not a socket; remove it")
    if found.st_uid != os.geteuid():
        raise OperatingError(f"socket refused: {path}: it belongs to uid {found.st_uid}; remove it")
    with socket.socket(socket.AF_UNIX, kind) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink()
            return
    raise OperatingError(f"socket refused: {path}: another salusd already answers there")


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
