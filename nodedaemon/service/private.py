"""A daemon of one's own: what `salus run` starts on a workstation, for an ordinary user, without root and Slurm.

Sockets and state are in the user's runtime directory, records in the user's own SQLite file. The daemon ends by itself
when nobody has used it for a while. Its configuration is a plain salus.conf in its directory, so every command works
with `-f` on it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from nodedaemon.config import load_or_raise
from nodedaemon.core.errors import OperatingError, SalusError
from nodedaemon.service.paths import prepare_directory
from nodedaemon.wire.envelope import exchange

EXIT_IDLE_SECONDS = 600
START_TIMEOUT_SECONDS = 20.0
_LOG_TAIL_BYTES = 2000


@dataclass(frozen=True)
class PrivateOptions:
    """What the user may choose; empty or 0 takes the default."""

    policy: str = ""
    memory: str = ""
    cores: tuple[int, ...] = ()
    database: Path | None = None
    exit_idle_s: int = EXIT_IDLE_SECONDS
    extra: str = ""


def private_directory() -> Path:
    """Where the user's own daemon lives: the runtime directory of the login, or one in the temporary directory."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "salus"
    return Path(tempfile.gettempdir()) / f"salus-{os.geteuid()}"


def private_database() -> Path:
    data = os.environ.get("XDG_DATA_HOME", "")
    return (Path(data) if data else Path.home() / ".local" / "share") / "salus" / "salus.db"


def write_config(directory: Path, options: PrivateOptions) -> Path:
    """Write the daemon's salus.conf; the answer is its path."""
    prepare_directory(directory, 0o700)
    database = options.database or private_database()
    database.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lines = [
        "# Written by salus run; changed at each start of the private daemon.",
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
    if options.policy:
        lines.append(f"Policy={options.policy}")
    memory = f" Memory={options.memory}" if options.memory else ""
    cores = f" Cores={','.join(str(core) for core in options.cores)}" if options.cores else ""
    lines.append(f"DeviceName=host0 Type=host{memory}{cores}")
    path = directory / "salus.conf"
    path.write_text("\n".join(lines) + "\n" + options.extra)
    load_or_raise(path)
    return path


def is_running(directory: Path) -> bool:
    return ping(directory / "run" / "control.sock") is not None


def ping(control_socket: Path, timeout_s: float = 2.0) -> int | None:
    """The pid of the daemon that answers there, or None."""
    with contextlib.suppress(OSError, SalusError), socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(timeout_s)
        probe.connect(str(control_socket))
        return int(exchange(probe, f"salusd: {control_socket}", {"verb": "ping"})["pid"])
    return None


def ensure_private(options: PrivateOptions, directory: Path | None = None) -> Path:
    """The configuration of the user's own daemon, started if none runs. Raises `OperatingError` with its log."""
    place = directory or private_directory()
    path = place / "salus.conf"
    if path.is_file() and is_running(place):
        return path
    path = write_config(place, options)
    start_daemon(path, place, options.exit_idle_s)
    return path


def start_daemon(config_file: Path, directory: Path, exit_idle_s: int) -> int:
    """Start salusd apart from the terminal and wait until it answers; its pid."""
    log_path = directory / "salusd.log"
    tree = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([tree, os.environ.get("PYTHONPATH", "")]).rstrip(":")}
    command = [sys.executable, "-m", "nodedaemon", "-f", str(config_file), "--exit-idle", str(exit_idle_s)]
    with log_path.open("ab") as log:
        process = subprocess.Popen(  # noqa: S603  our own program
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment
        )
    deadline_s = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline_s:
        if ping(directory / "run" / "control.sock", 1.0) is not None:
            return process.pid
        if process.poll() is not None:
            break
        time.sleep(0.02)
    # Two users of one login may start it at once: the one that lost finds the other's.
    if is_running(directory):
        return process.pid
    tail = log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
    raise OperatingError(f"start salusd: {directory}: it does not come up; its log ends with:\n{tail}")
