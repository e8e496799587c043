"""Where the daemon keeps its sockets and state: made safely, or refused with the reason.

A path that somebody else could have prepared is never used: no symbolic link, no foreign owner, no directory that
others may write. A socket left behind by a dead daemon is replaced; one that answers means that a daemon runs already.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import socket
import stat
from pathlib import Path

from nodedaemon.core.errors import OperatingError

SOCKET_BACKLOG = 512


def prepare_directory(path: Path, mode: int) -> None:
    """Make the directory, or check that it is ours alone to write. Raises `OperatingError`."""
    with contextlib.suppress(FileExistsError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        path.mkdir(mode=mode)
        # The umask may have taken bits that others need to reach the socket.
        path.chmod(mode)
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise OperatingError(f"directory refused: {path}: it is a symbolic link; remove it")
    if not stat.S_ISDIR(found.st_mode):
        raise OperatingError(f"directory refused: {path}: it is not a directory; remove it")
    if found.st_uid not in (0, os.geteuid()):
        raise OperatingError(f"directory refused: {path}: it belongs to uid {found.st_uid}; remove it")
    if stat.S_IMODE(found.st_mode) & 0o022:
        raise OperatingError(f"directory refused: {path}: others may write to it; chmod go-w {path}")


def lock_state(path: Path) -> int:
    """Hold the state directory for this process's life. The lock dies with it, however it dies."""
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise OperatingError(f"start refused: {path}: another salusd has this state directory") from None
    return descriptor


def open_socket(path: Path, kind: socket.SocketKind) -> socket.socket:
    """Listen at `path`, for every local user: who they are is asked of the kernel. Raises `OperatingError`."""
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
        raise OperatingError(f"socket refused: {path}: something else is there; remove it")
    if found.st_uid != os.geteuid():
        raise OperatingError(f"socket refused: {path}: it belongs to uid {found.st_uid}; remove it")
    with socket.socket(socket.AF_UNIX, kind) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink()
            return
    raise OperatingError(f"socket refused: {path}: a salusd answers there already")


def raise_descriptor_limit() -> None:
    """Each session costs about five descriptors; the soft limit of 1024 is for programs that call select()."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 65_536) if hard != resource.RLIM_INFINITY else 65_536
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        raise OperatingError(f"raise open files: {error}; set LimitNOFILE in the unit") from error
