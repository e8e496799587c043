"""`salus config lua`, `salus config gres`, and the comparison of salus.conf with Slurm's files."""

import pwd
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.site.config import config_of
from nodedaemon.config import Config, lane_reserve_bytes
from nodedaemon.core.errors import RequestError, SalusError

if TYPE_CHECKING:
    from slurm_plugin.slurm.crosscheck import ConfigMismatch

Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to FILE instead of standard output.")
]


def write_lua(context: typer.Context, output: Output = None) -> None:
    """Print the table that job_submit.lua reads. Install it next to that file after each change to salus.conf."""
    from slurm_plugin.admitd.catalog import catalog_of
    from slurm_plugin.lua.table import lua_table
    from slurm_plugin.slurm.choice import open_slurm

    config = config_of(context)
    slurm = open_slurm(config.settings.slurm)
    release, nodes = slurm.release(), []
    try:
        nodes = slurm.nodes()
    except SalusError as error:
        print(f"salus: config lua: {error}; using the shards in salus.conf", file=sys.stderr)
    try:
        uid = pwd.getpwnam(config.settings.slurm.user).pw_uid
    except KeyError:
        raise RequestError(f"config lua: SlurmUser={config.settings.slurm.user}: no such user on this host") from None
    text = lua_table(config, catalog_of(config, nodes).shards_max(), uid, release)
    if output is None:
        print(text, end="")
        return
    # Rename a complete file: slurmctld may read it at any time.
    partial = output.with_name(f".{output.name}.new")
    partial.write_text(text)
    partial.chmod(0o644)
    partial.rename(output)
    print(f"{output}: written; slurmctld reads it when it starts and when job_submit.lua changes")


def print_gres(
    context: typer.Context,
    node: Annotated[str, typer.Argument(metavar="NODE", help="Name of the node in Slurm.")],
    file: Annotated[
        list[str] | None, typer.Option("--file", metavar="PATH", help="Device file of each device, in order.")
    ] = None,
) -> None:
    """Print a node's lines for gres.conf, from its devices in salus.conf."""
    from slurm_plugin.slurm.crosscheck import gres_lines

    config = config_of(context)
    devices = [device for device in config.devices_of(node) if device.memory_bytes]
    if not devices:
        raise RequestError(f"config gres: {node}: salus.conf has no device with Memory= for it; add DeviceName records")
    files = file or [f"/dev/nvidia{index}" for index in range(len(devices))]
    if len(files) != len(devices):
        raise RequestError(f"config gres: {node}: {len(devices)} devices but {len(files)} files; use one --file each")
    lines = [
        (path, device.memory_bytes, lane_reserve_bytes(device.settings, device.memory_bytes))
        for device, path in zip(devices, files, strict=True)
    ]
    print("\n".join(gres_lines(config, node, lines)))


def check_slurm(config: Config) -> "list[ConfigMismatch]":
    """Differences between salus.conf and Slurm's files, for `salus config check --slurm`."""
    from slurm_plugin.slurm.cli import SlurmCommands
    from slurm_plugin.slurm.crosscheck import cross_check
    from slurm_plugin.slurm.slurmconf import read_slurm_files

    try:
        release = SlurmCommands(config.settings.slurm.bin_dir).release()
    except SalusError:
        release = None
    files = read_slurm_files(Path(config.settings.slurm.conf))
    return cross_check(config, files, release)
