"""`salus config lua`, `gres` and the check against Slurm's own files: what an admin needs to join Salus and Slurm."""

import pwd
import sys
from pathlib import Path
from typing import Annotated

import typer

from cli.site.config import config_of
from nodedaemon.config import Config, lane_reserve_bytes
from nodedaemon.core.errors import RequestError, SalusError

Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write there instead of to standard output.")
]


def write_lua(context: typer.Context, output: Output = None) -> None:
    """Print the table that job_submit.lua needs; put it beside that file, and again after a change of salus.conf."""
    from slurm_plugin.admitd.catalog import catalog_of
    from slurm_plugin.lua.table import lua_table
    from slurm_plugin.slurm.choice import open_slurm

    config = config_of(context)
    slurm = open_slurm(config.settings.slurm)
    release, nodes = slurm.release(), []
    try:
        nodes = slurm.nodes()
    except SalusError as error:
        print(f"salus: config lua: {error}; shards are taken from salus.conf", file=sys.stderr)
    try:
        uid = pwd.getpwnam(config.settings.slurm.user).pw_uid
    except KeyError:
        raise RequestError(f"config lua: SlurmUser={config.settings.slurm.user}: no such user here") from None
    text = lua_table(config, catalog_of(config, nodes).shards_max(), uid, release)
    if output is None:
        print(text, end="")
        return
    # Written beside and renamed: slurmctld may read it at any moment.
    partial = output.with_name(f".{output.name}.new")
    partial.write_text(text)
    partial.chmod(0o644)
    partial.rename(output)
    print(f"{output}: written; slurmctld reads it at its next start, or when job_submit.lua is touched")


def print_gres(
    context: typer.Context,
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node's name in Slurm.")],
    file: Annotated[
        list[str] | None, typer.Option("--file", metavar="PATH", help="Device file of each device, in order.")
    ] = None,
) -> None:
    """Print the lines of gres.conf for a node from the devices that salus.conf names for it."""
    from slurm_plugin.slurm.crosscheck import gres_lines

    config = config_of(context)
    known = [device for device in config.devices_of(node) if device.memory_bytes]
    if not known:
        raise RequestError(
            f"config gres: {node}: salus.conf names no device with Memory= for it; add DeviceName records"
        )
    files = file or [f"/dev/nvidia{index}" for index in range(len(known))]
    if len(files) != len(known):
        raise RequestError(f"config gres: {node}: {len(known)} devices, but {len(files)} files; give one --file each")
    devices = [
        (path, device.memory_bytes, lane_reserve_bytes(device.settings, device.memory_bytes))
        for device, path in zip(known, files, strict=True)
    ]
    print("\n".join(gres_lines(config, node, devices)))


def check_slurm(config: Config, path: Path | None = None) -> list[str]:
    """What `salus config check --slurm` adds: disagreements with slurm.conf and gres.conf, as texts."""
    from slurm_plugin.slurm.cli import SlurmCommands
    from slurm_plugin.slurm.crosscheck import cross_check
    from slurm_plugin.slurm.slurmconf import read_slurm_files

    try:
        release = SlurmCommands(config.settings.slurm.bin_dir).release()
    except SalusError:
        release = None
    return [
        str(found) for found in cross_check(config, read_slurm_files(path or Path(config.settings.slurm.conf)), release)
    ]
