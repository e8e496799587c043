"""Checks that a program on a shared machine trusts only files and servers of root or of its own user.

Another user may have prepared a path in /tmp, a relative path or a path from the environment. Call
`require_own_directory` before you read such a directory, and `require_own_server` before the first request. Start our
own programs with `own_module`, because root may run a command in a directory of another user.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from nodedaemon.core.errors import OperatingError

#: No file that `read_own_file` reads is larger.
FILE_BYTES_MAX: Final = 1 << 20
#: The variable through which `own_module` finds our packages. It replaces the caller's value, in which an empty entry
#: would mean the working directory.
OWN_IMPORTS: Final = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}


def require_own_directory(path: Path, advice: str = "remove it") -> None:
    """Raise `OperatingError` unless only root and the caller can write to the directory.

    `advice` says what to do about a directory of another user.
    """
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise OperatingError(f"directory refused: {path}: it is a symbolic link; {advice}")
    if not stat.S_ISDIR(found.st_mode):
        raise OperatingError(f"directory refused: {path}: it is not a directory; {advice}")
    if not is_trusted(found.st_uid):
        raise OperatingError(f"directory refused: {path}: it belongs to uid {found.st_uid}; {advice}")
    if stat.S_IMODE(found.st_mode) & 0o022:
        raise OperatingError(f"directory refused: {path}: others may write to it; chmod go-w {path}")


def require_own_place(path: Path, advice: str) -> None:
    """Raise `OperatingError` if another user could replace `path`, or a directory above it."""
    for folder in _above(path):
        found = folder.lstat()
        is_sticky = bool(found.st_mode & stat.S_ISVTX)
        is_open = bool(found.st_mode & 0o002) or (bool(found.st_mode & 0o020) and found.st_gid not in (0, os.getegid()))
        if is_trusted(found.st_uid) and (stat.S_ISLNK(found.st_mode) or is_sticky or not is_open):
            continue
        raise OperatingError(f"directory refused: {path}: other users may change {folder}; {advice}")


def _above(path: Path) -> Iterable[Path]:
    """The existing directories above `path`, and those that symbolic links among them lead to."""
    real = path.parent.resolve()
    return [folder for folder in (*path.absolute().parents, real, *real.parents) if os.path.lexists(folder)]


def read_own_file(path: Path, owner: int | None = None) -> bytes:
    """The content of a regular file of `owner`, by default of root or the caller.

    Raises `OperatingError` for anything else.
    """
    try:
        # Without O_NONBLOCK, a FIFO would block the open.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise OperatingError(f"file refused: {path}: {error.strerror}; remove it") from error
    try:
        found = os.fstat(descriptor)
        is_own = is_trusted(found.st_uid) if owner is None else found.st_uid == owner
        if not stat.S_ISREG(found.st_mode) or not is_own or found.st_mode & 0o022:
            raise OperatingError(f"file refused: {path}: another user could have written it; remove it")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(FILE_BYTES_MAX + 1)
    finally:
        os.close(descriptor)
    if len(content) > FILE_BYTES_MAX:
        raise OperatingError(f"file refused: {path}: it has more than {FILE_BYTES_MAX} bytes; remove it")
    return content


class PeerCredentials(NamedTuple):
    """The process that made the connection, as the kernel reports it."""

    pid: int
    uid: int
    gid: int


def peer_credentials(connection: socket.socket) -> PeerCredentials:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return PeerCredentials(*struct.unpack("3i", raw))


def require_own_server(connection: socket.socket, server: str) -> None:
    """Raise `OperatingError` unless root or the caller listens at the other end. `server` names it in the error."""
    uid = peer_credentials(connection).uid
    if not is_trusted(uid):
        raise OperatingError(f"{server}: refused: uid {uid} answers there, not root or you; check its address")


def own_module(module: str, *arguments: str) -> list[str]:
    """The command that runs one of our modules; its environment needs `OWN_IMPORTS`.

    Without -P, Python would import from the working directory first. Without -s, it would import from the home
    directory that the environment names.
    """
    return [sys.executable, "-sP", "-m", module, *arguments]


def is_trusted(uid: int) -> bool:
    return uid in (0, os.geteuid())
