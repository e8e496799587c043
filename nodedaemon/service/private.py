"""A private daemon: `salus run` starts it for an ordinary user on a workstation, without root and without Slurm.

Sockets and state are in the user's runtime directory, records in the user's own SQLite file. The daemon exits
after some time without jobs. Its configuration is a plain salus.conf in its directory, so every command can use it
with `-f`.

The directory may be in a temporary directory that all users share. It is used only if no other user could have made
or changed it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from nodedaemon.config import load_or_raise
from nodedaemon.core.errors import OperatingError, SalusError
from nodedaemon.wire.envelope import exchange
from nodedaemon.wire.listener import prepare_directory
from nodedaemon.wire.trust import OWN_IMPORTS, own_module, require_own_directory, require_own_place, require_own_server

EXIT_IDLE_S = 600
START_TIMEOUT_S = 20.0
_LOG_TAIL_BYTES = 2000
_DATA_ADVICE = "set XDG_DATA_HOME to a directory that only you can write to"
_ADVICE = "ask an admin to remove it, or set XDG_RUNTIME_DIR to a directory that only you can write to"


def private_directory() -> Path:
    """The directory of the user's daemon: in the runtime directory of the login, or else in the temporary directory."""
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    # After `su`, the variable still names the directory of the earlier user.
    if runtime.is_absolute() and runtime.is_dir() and runtime.stat().st_uid == os.geteuid():
        return runtime / "salus"
    return Path(tempfile.gettempdir()) / f"salus-{os.geteuid()}"


def private_config() -> Path | None:
    """The configuration of the user's daemon if there is one. Raises `OperatingError` if another user made it."""
    directory = private_directory()
    if not os.path.lexists(directory):
        return None
    require_own_directory(directory, _ADVICE)
    require_own_place(directory, _ADVICE)
    path = directory / "salus.conf"
    return path if path.is_file() else None


def private_database() -> Path:
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (data if data.is_absolute() else Path.home() / ".local" / "share") / "salus" / "salus.db"


def write_config(directory: Path, policy: str, memory: str) -> Path:
    """Write the daemon's salus.conf. An empty policy or memory means the default."""
    require_own_place(directory, _ADVICE)
    prepare_directory(directory, 0o700)
    database = private_database()
    require_own_place(database.parent, _DATA_ADVICE)
    database.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    require_own_directory(database.parent, _DATA_ADVICE)
    lines = [
        "# Written by salus run; overwritten at each start of the private daemon.",
        "ClusterName=local",
        "SingleHost=yes",
        "LocalJobs=yes",
        f"DaemonSocket={directory}/run/salusd.sock",
        f"ControlSocket={directory}/run/control.sock",
        f"StateDir={directory}/state",
        f"StorageUrl=sqlite:///{database}",
        "MetricsPort=0",
        "AutoDetect=nvml",
        "LedgerInterval=1",
    ]
    if policy:
        lines.append(f"Policy={policy}")
    lines.append("DeviceName=host0 Type=host" + (f" Memory={memory}" if memory else ""))
    path = directory / "salus.conf"
    path.write_text("\n".join(lines) + "\n")
    load_or_raise(path)
    return path


def is_running(directory: Path) -> bool:
    return ping(directory / "run" / "control.sock") is not None


def ping(control_socket: Path, timeout_s: float = 2.0) -> int | None:
    """The pid of the daemon that answers there, or None."""
    with contextlib.suppress(OSError, SalusError), socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(timeout_s)
        probe.connect(str(control_socket))
        require_own_server(probe, f"salusd: {control_socket}")
        return int(exchange(probe, f"salusd: {control_socket}", {"verb": "ping"})["pid"])
    return None


def ensure_private(policy: str, memory: str) -> Path:
    """Start the user's daemon unless it runs, and return its configuration. Raises `OperatingError` with its log."""
    directory = private_directory()
    path = private_config()
    if path is None or not is_running(directory):
        path = write_config(directory, policy, memory)
        start_daemon(path, directory)
    return path


def start_daemon(config_file: Path, directory: Path) -> None:
    """Start salusd detached from the terminal and wait until it answers."""
    log_path = directory / "salusd.log"
    command = own_module("nodedaemon", "-f", str(config_file), "--exit-idle", str(EXIT_IDLE_S))
    with log_path.open("ab") as log:
        process = subprocess.Popen(  # noqa: S603  our own program
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, **OWN_IMPORTS},
            cwd="/",
        )
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if ping(directory / "run" / "control.sock", 1.0) is not None:
            return
        if process.poll() is not None:
            break
        time.sleep(0.02)
    # Two commands of one user may start a daemon at the same time. Only one daemon survives, and both use it.
    if is_running(directory):
        return
    tail = log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
    raise OperatingError(f"start salusd: {directory}: it does not answer; its log ends with:\n{tail}")
