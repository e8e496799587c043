"""`salus run`: one job in lanes of a local device, without Slurm; repeat it in other terminals and they share.

The command becomes the job: it keeps the process that asked salusd for a place, so signals, exit code and terminal are
the job's own, and salusd knows its processes by descent. Where no salusd is named, the user's own is started.
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

from cli.entry import NotFoundError
from cli.output.units import size_text
from cli.remote.salusd import DaemonClient, connect, node_name
from nodedaemon.config import load_or_raise
from nodedaemon.config.kinds import Size
from nodedaemon.core.errors import RequestError
from nodedaemon.core.policies import POLICIES
from nodedaemon.service.private import PrivateOptions, ensure_private, is_running, private_directory
from nodedaemon.wire.control import NodeStatus

WAIT_STEP_MS = 1000
# Put before the user's own, so that both work.
PREPENDED = {"PYTHONPATH": ":", "LD_PRELOAD": " "}


def register(app: typer.Typer) -> None:
    """Add the commands of this noun; `cli.main` calls it."""
    app.command("run", context_settings={"ignore_unknown_options": True})(run)


def run(
    context: typer.Context,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND [ARGUMENT]...", help="The job.")],
    policy: Annotated[str, typer.Option(help=f"Order of the sessions: {', '.join(POLICIES)}.")] = "",
    memory: Annotated[str, typer.Option(help="Memory of the local device, when its daemon is started.")] = "",
    job_class: Annotated[str, typer.Option("--class", help="Class of the job, for the priority policy.")] = "",
    persistent: Annotated[str, typer.Option(help="Bytes that the job keeps, such as 2G; else as measured.")] = "",
    ephemeral: Annotated[str, typer.Option(help="Bytes that an iteration borrows; else as measured.")] = "",
    profile: Annotated[str, typer.Option(help="Name of the profile, instead of command and script.")] = "",
    device: Annotated[str, typer.Option(help="Index, name or uuid of the device.")] = "",
) -> None:
    """Run a job in lanes of a local device, beside others, without Slurm.

    A job that was never measured has the device to itself; from its second run on it shares. Its exit code is returned.
    """
    if policy and policy not in POLICIES:
        raise RequestError(f"run: policy {policy}: unknown; use one of {', '.join(POLICIES)}")
    program = shutil.which(command[0])
    if program is None:
        raise NotFoundError(f"run: {command[0]}: no such program")
    sizes = {
        "persistent_bytes": _size("--persistent", persistent),
        "ephemeral_bytes": _size("--ephemeral", ephemeral),
    }
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
    """The Python file that a command line names, if any."""
    return next((part for part in command[1:] if part.endswith(".py") and Path(part).is_file()), None)


def signature_of(command: list[str]) -> str:
    """What a profile is stored under: the arguments, and the text of the script they name."""
    digest = hashlib.sha256("\0".join(command[1:] or command).encode(errors="surrogateescape"))
    script = script_of(command)
    if script is not None:
        digest.update(b"\0" + Path(script).read_bytes())
    return digest.hexdigest()[:32]


def environment_of(given: list[str], own: Mapping[str, str]) -> dict[str, str]:
    """The user's environment with what salusd adds to it."""
    environment = dict(own)
    for entry in given:
        name, _, value = entry.partition("=")
        if name in PREPENDED and own.get(name):
            value += PREPENDED[name] + own[name]
        if name == "OMP_NUM_THREADS" and own.get(name):
            continue
        environment[name] = value
    return environment


def _daemon(context: typer.Context, policy: str, memory: str) -> DaemonClient:
    if context.find_root().obj is not None or "SALUS_CONF" in os.environ:
        client = connect(context)
        if memory:
            raise RequestError("run: --memory: the device's size is in the configuration that you named")
    else:
        was_running = is_running(private_directory())
        config = ensure_private(PrivateOptions(policy=policy, memory=memory))
        client = DaemonClient(Path(load_or_raise(config).for_node(node_name()).daemon.control_socket))
        if not was_running:
            return client
        if memory:
            held = ", ".join(size_text(one.capacity_bytes) for one in client.ask_for(NodeStatus, "status").devices)
            print(f"salus: run: --memory {memory}: your salusd runs already, with {held}", file=sys.stderr)
    if policy:
        client.ask("policy_set", policy=policy)
    return client


def _wait_for_memory(daemon: DaemonClient, answer: Mapping[str, Any]) -> None:
    """Returns when the job's persistent bytes are free. Its place is kept while this process lives."""
    if answer["is_admitted"]:
        return
    is_alone = answer["kind"] == "exclusive"
    why = "it was never measured and gets the device alone" if is_alone else "memory is not free yet"
    print(f"salus: run: job {answer['job']} waits: {why}; salus why {answer['job']} says more", file=sys.stderr)
    while not daemon.ask("run_wait", job=answer["job"], wait_ms=WAIT_STEP_MS)["is_admitted"]:
        continue


def _size(option: str, text: str) -> int:
    try:
        return Size().parse(text) if text else 0
    except ValueError as error:
        raise RequestError(f"run: {option}: {error}") from error
