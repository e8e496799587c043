"""`salus run`: runs a job in the lanes of a local device without Slurm. Several of them share the device.

The command replaces itself by the job, so the job keeps the terminal, receives signals, and returns its own exit code.
salusd identifies the job's processes as descendants of this one. Without a configured salusd, the user's own is
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

from cli.output.units import size_text
from cli.remote.salusd import DaemonClient, connect, node_name
from nodedaemon.config import load_or_raise
from nodedaemon.config.kinds import Size
from nodedaemon.core.errors import RequestError
from nodedaemon.core.policies import POLICIES
from nodedaemon.service.private import PrivateOptions, ensure_private, is_running, private_directory
from nodedaemon.wire.control import NodeStatus
from nodedaemon.wire.envelope import NotFoundError

WAIT_STEP_MS = 1000
# These values go in front of the user's, so that both work.
PREPENDED = {"PYTHONPATH": ":", "LD_PRELOAD": " "}


def run(
    context: typer.Context,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND [ARGUMENT]...", help="The command of the job.")],
    policy: Annotated[str, typer.Option(help=f"Order of the sessions: {', '.join(POLICIES)}.")] = "",
    memory: Annotated[str, typer.Option(help="Memory of the local device, if this starts its daemon.")] = "",
    job_class: Annotated[str, typer.Option("--class", help="Class of the job, for the priority policy.")] = "",
    persistent: Annotated[str, typer.Option(help="Persistent memory, such as 2G. Default: measured.")] = "",
    ephemeral: Annotated[str, typer.Option(help="Memory of one iteration. Default: measured.")] = "",
    profile: Annotated[str, typer.Option(help="Name of the profile. Default: derived from command and script.")] = "",
    device: Annotated[str, typer.Option(help="Index, name or UUID of the device.")] = "",
) -> None:
    """Run a job on a local device without Slurm, together with others.

    The first run of a job has the device to itself and is measured; later runs share it. The exit code is the job's.
    """
    if policy and policy not in POLICIES:
        raise RequestError(f"run: unknown policy {policy}; use one of {', '.join(POLICIES)}")
    program = shutil.which(command[0])
    if program is None:
        raise NotFoundError(f"run: {command[0]}: no such program")
    sizes = {"persistent_bytes": _size("--persistent", persistent), "ephemeral_bytes": _size("--ephemeral", ephemeral)}
    daemon = _daemon(context, policy, memory)
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
    os.execve(program, command, environment_of(answer["env"], os.environ))  # noqa: S606  this is what the user asked for


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


def environment_of(added: list[str], user: Mapping[str, str]) -> dict[str, str]:
    """The user's environment with the variables that salusd adds."""
    environment = dict(user)
    for entry in added:
        name, _, value = entry.partition("=")
        if name in PREPENDED and user.get(name):
            value += PREPENDED[name] + user[name]
        if name == "OMP_NUM_THREADS" and user.get(name):
            continue
        environment[name] = value
    return environment


def _daemon(context: typer.Context, policy: str, memory: str) -> DaemonClient:
    if context.find_root().obj is not None or "SALUS_CONF" in os.environ:
        client = connect(context)
        if memory:
            raise RequestError("run: --memory: the configuration file sets the memory of the device")
    else:
        was_running = is_running(private_directory())
        config = ensure_private(PrivateOptions(policy=policy, memory=memory))
        client = DaemonClient(Path(load_or_raise(config).for_node(node_name()).daemon.control_socket))
        if not was_running:
            return client
        if memory:
            devices = client.ask_for(NodeStatus, "status").devices
            sizes = ", ".join(size_text(device.capacity_bytes) for device in devices)
            print(f"salus: run: --memory {memory} ignored: your salusd already runs with {sizes}", file=sys.stderr)
    if policy:
        client.ask("policy_set", policy=policy)
    return client


def _wait_for_memory(daemon: DaemonClient, answer: Mapping[str, Any]) -> None:
    """Wait until the job's persistent memory is free. salusd keeps its place as long as this process lives."""
    if answer["is_admitted"]:
        return
    is_alone = answer["kind"] == "exclusive"
    why = "it was never measured and needs the device alone" if is_alone else "there is not enough free memory"
    print(f"salus: run: job {answer['job']} is waiting: {why}; see salus why {answer['job']}", file=sys.stderr)
    while not daemon.ask("run_wait", job=answer["job"], wait_ms=WAIT_STEP_MS)["is_admitted"]:
        continue


def _size(option: str, text: str) -> int:
    try:
        return Size().parse(text) if text else 0
    except ValueError as error:
        raise RequestError(f"run: {option}: {error}") from error
