"""Commands that change a running salusd: `salus policy set`, `salus reload`, `salus drain`, `salus resume`."""

from typing import Annotated

import typer

from cli.output.render import Json, write_json
from cli.output.units import counted
from cli.remote.salusd import connect
from nodedaemon.core.policies import POLICIES

policies = typer.Typer(no_args_is_help=True, help="Change the order in which sessions are served.")

DeviceArgument = Annotated[str, typer.Argument(metavar="DEVICE", help="Index, name or UUID of the device.")]


@policies.command("set")
def set_policy(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="POLICY", help=f"One of {', '.join(POLICIES)}.")],
    device: Annotated[str, typer.Option(help="Only this device: index, name or UUID.")] = "",
    json: Json = False,
) -> None:
    """Change the policy at once. Running iterations are not interrupted. A reload restores the configured policy."""
    answer = connect(context).ask("policy_set", policy=name, device=device)
    if json:
        write_json(answer)
    else:
        print(f"policy {name} on {counted(len(answer['devices']), 'device')}")


def reload(context: typer.Context, json: Json = False) -> None:
    """Read the configuration again. A file with errors is rejected, and the old configuration stays in effect."""
    answer = connect(context).ask("reload")
    if json:
        write_json(answer)
    else:
        print("changed: " + (", ".join(answer["changed"]) or "nothing"))


def drain(
    context: typer.Context,
    device: DeviceArgument,
    reason: Annotated[str, typer.Option(help="Reason to show to waiting users.")] = "",
) -> None:
    """Accept no new sessions on a device. Its current sessions continue."""
    connect(context).ask("drain", device=device, reason=reason)
    print(f"device {device} drained")


def resume(context: typer.Context, device: DeviceArgument) -> None:
    """Accept sessions on a drained device again."""
    connect(context).ask("resume", device=device)
    print(f"device {device} resumed")
