"""Creates the directories and unix sockets of a daemon, or refuses a path that is not safe.

A path is not safe if another user could have prepared it: it is a symbolic link, has another owner, or is in a
directory that others may write to. A socket that a dead daemon left is replaced. If the socket answers, a daemon runs
already.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

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


def open_socket(
    path: Path, kind: socket.SocketKind, *, mode: int = 0o666, owner_uid: int | None = None
) -> socket.socket:
    """Listen at `path`. With the default mode, every local user may connect; the kernel identifies each of them.

    The socket belongs to `owner_uid`, or else to the caller. Raises `OperatingError`.
    """
    owner_uid = os.geteuid() if owner_uid is None else owner_uid
    prepare_directory(path.parent, 0o755)
    _clear(path, kind, owner_uid)
    listener = socket.socket(socket.AF_UNIX, kind)
    try:
        listener.bind(str(path))
        # Nobody can connect before the call of listen.
        path.chmod(mode)
        if owner_uid != os.geteuid():
            os.chown(path, owner_uid, -1)
        listener.listen(SOCKET_BACKLOG)
    except OSError as error:
        listener.close()
        raise OperatingError(f"listen: {path}: {error.strerror or error}; check its length and its owner") from error
    return listener


def _clear(path: Path, kind: socket.SocketKind, owner_uid: int) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(found.st_mode):
        raise OperatingError(f"socket refused: {path}: it is a symbolic link; remove it")
    if not stat.S_ISSOCK(found.st_mode):
        raise OperatingError(f"socket refused: {path}: it is not a socket; remove it")
    if found.st_uid not in (os.geteuid(), owner_uid):
        raise OperatingError(f"socket refused: {path}: it belongs to uid {found.st_uid}; remove it")
    with socket.socket(socket.AF_UNIX, kind) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink()
            return
    raise OperatingError(f"socket refused: {path}: another daemon already answers there")
