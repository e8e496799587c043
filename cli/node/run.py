"""`salus run`: runs a job in the lanes of a local device without Slurm. Several jobs share the device.

The command replaces itself with the job, so the job keeps the terminal, receives signals, and returns its own exit
code. salusd identifies the job's processes as descendants of this one. Without a configured salusd, the user's own is
started.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.entry import parse_option
from cli.node.job_environment import environment_of
from cli.output.units import size_text
from cli.remote.salusd import DaemonClient, connect, node_name
from cli.site.config import config_of
from nodedaemon.config import Settings, load_or_raise
from nodedaemon.config.kinds import Size
from nodedaemon.core.errors import RequestError
from nodedaemon.core.policies import POLICIES
from nodedaemon.service.private import ensure_private, is_running, private_config, private_directory
from nodedaemon.wire.control import NodeStatus
from nodedaemon.wire.envelope import NotFoundError

WAIT_STEP_MS = 1000


def run(
    context: typer.Context,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="Command of the job with its arguments.")],
    policy: Annotated[str, typer.Option(help=f"Scheduling policy: {', '.join(POLICIES)}.")] = "",
    memory: Annotated[
        str, typer.Option(help="Memory of the local device. Used only if this command starts the daemon.")
    ] = "",
    job_class: Annotated[str, typer.Option("--class", help="Class of the job: high, normal or best-effort.")] = "",
    persistent: Annotated[str, typer.Option(help="Persistent memory, such as 2G. Default: measured.")] = "",
    ephemeral: Annotated[str, typer.Option(help="Memory of one iteration. Default: measured.")] = "",
    profile: Annotated[str, typer.Option(help="Name of the profile. Default: derived from command and script.")] = "",
    device: Annotated[str, typer.Option(help="Index, name or UUID of the device.")] = "",
) -> None:
    """Run a job on a local device without Slurm. Several jobs share the device.

    The first run of a job has the device to itself and is measured; later runs share it. The exit code is the job's.
    """
    if policy and policy not in POLICIES:
        raise RequestError(f"run: unknown policy {policy}; use one of {', '.join(POLICIES)}")
    program = shutil.which(command[0])
    if program is None:
        raise NotFoundError(f"run: {command[0]}: no such program")
    sizes = {
        f"{name}_bytes": parse_option("run", f"--{name}", Size(), text) if text else 0
        for name, text in (("persistent", persistent), ("ephemeral", ephemeral))
    }
    daemon, settings = _daemon(context, policy, memory)
    answer = daemon.ask(
        "run_start",
        name=Path(command[-1] if len(command) == 1 else script_of(command) or command[0]).name,
        signature=profile or signature_of(command),
        device=device,
        **sizes,
        **({"class": job_class} if job_class else {}),
    )
    _wait_for_memory(daemon, answer)
    daemon.close()
    environment = environment_of(answer["env"], os.environ, settings)
    os.execve(program, command, environment)  # noqa: S606 - the command of the user


def script_of(command: list[str]) -> str | None:
    """The Python file in a command line, if any."""
    return next((part for part in command[1:] if part.endswith(".py") and Path(part).is_file()), None)


def signature_of(command: list[str]) -> str:
    """The key of the job's profile: a hash of the arguments and of the script that they name."""
    digest = hashlib.sha256("\0".join(command[1:] or command).encode(errors="surrogateescape"))
    script = script_of(command)
    if script is not None:
        digest.update(b"\0" + Path(script).read_bytes())
    return digest.hexdigest()[:32]


def _daemon(context: typer.Context, policy: str, memory: str) -> tuple[DaemonClient, Settings]:
    """The daemon that runs the job, and its configuration."""
    if context.find_root().obj is not None or "SALUS_CONF" in os.environ:
        client, settings = connect(context), config_of(context).for_node(node_name())
        if memory:
            raise RequestError("run: --memory: the configuration file sets the memory of the device")
    else:
        was_running = private_config() is not None and is_running(private_directory())
        settings = load_or_raise(ensure_private(policy, memory)).for_node(node_name())
        client = DaemonClient(Path(settings.daemon.control_socket))
        if not was_running:
            return client, settings
        if memory:
            devices = client.ask_for(NodeStatus, "status").devices
            sizes = ", ".join(size_text(device.capacity_bytes) for device in devices)
            print(f"salus: run: --memory {memory} ignored: your salusd is running with {sizes}", file=sys.stderr)
    if policy:
        client.ask("policy_set", policy=policy)
    return client, settings


def _wait_for_memory(daemon: DaemonClient, answer: Mapping[str, Any]) -> None:
    """Wait until there is memory for the job. salusd keeps its place in the queue as long as this process lives."""
    if answer["is_admitted"]:
        return
    is_alone = answer["kind"] == "exclusive"
    why = "it was never measured and needs a device to itself" if is_alone else "there is not enough free memory"
    print(f"salus: run: job {answer['job']} is waiting: {why}; see salus why {answer['job']}", file=sys.stderr)
    while not daemon.ask("run_wait", job=answer["job"], wait_ms=WAIT_STEP_MS)["is_admitted"]:
        continue
