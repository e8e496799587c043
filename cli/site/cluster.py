"""`salus cluster`: a private, real Slurm cluster on this machine, for trying and developing Salus."""

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.output.render import Form, Json, parse_columns, write_json, write_rows
from nodedaemon.core.errors import RequestError
from nodedaemon.core.types import GIB, KIB, MIB

if TYPE_CHECKING:
    from slurm_plugin.cluster.control import PrivateCluster

app = typer.Typer(
    name="cluster",
    help="Run a private, real Slurm cluster on this machine, for demos, tests and development. Needs root.",
    no_args_is_help=True,
)

Directory = Annotated[
    Path | None,
    typer.Option(
        "--dir", metavar="DIR", help="Directory of the cluster. Default: salus-cluster-UID in the temporary directory."
    ),
]

SIZE_UNITS = {"": MIB, "K": KIB, "M": MIB, "G": GIB}


def _directory(directory: Path | None) -> Path:
    default = Path(tempfile.gettempdir()) / f"salus-cluster-{os.geteuid()}"
    return (directory or default).absolute()


def _open(directory: Path | None) -> "PrivateCluster":
    from slurm_plugin.cluster.control import PrivateCluster
    from slurm_plugin.cluster.plan import ClusterPlan

    return PrivateCluster(ClusterPlan.load(_directory(directory)))


def _size_bytes(text: str, option: str) -> int:
    matched = re.fullmatch(r"(\d+)([KMG]?)", text.upper())
    if matched is None:
        raise RequestError(f"cluster: {option} {text}: not a size; use for example 512M")
    return int(matched[1]) * SIZE_UNITS[matched[2]]


@app.command()
def up(
    directory: Directory = None,
    nodes: Annotated[int, typer.Option("--nodes", help="Number of nodes.")] = 2,
    devices: Annotated[int, typer.Option("--devices", help="Number of devices per node.")] = 2,
    device_memory: Annotated[
        str, typer.Option("--device-memory", metavar="SIZE", help="Memory of each device.")
    ] = "1G",
    lane_reserve: Annotated[
        str, typer.Option("--lane-reserve", metavar="SIZE", help="LaneReserve of each device.")
    ] = "256M",
    plain: Annotated[bool, typer.Option("--plain", help="Slurm only, without Salus.")] = False,
    json: Json = False,
) -> None:
    """Start a cluster and wait until its nodes are idle."""
    from slurm_plugin.cluster import control
    from slurm_plugin.cluster.plan import ClusterPlan

    plan = ClusterPlan(
        directory=_directory(directory),
        node_count=nodes,
        device_count=devices,
        device_bytes=_size_bytes(device_memory, "--device-memory"),
        lane_reserve_bytes=_size_bytes(lane_reserve, "--lane-reserve"),
        with_salus=not plain,
    )
    cluster = control.up(plan, say=lambda line: print(f"cluster: {line}", file=sys.stderr))
    if json:
        write_json(cluster.status())
        return
    print(f"cluster: up in {plan.directory}; try: salus cluster exec --user games -- sbatch --gres=salus:1 job.sh")


@app.command()
def down(
    directory: Directory = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the directory with its logs.")] = False,
    json: Json = False,
) -> None:
    """Stop a cluster and remove its directory."""
    cluster = _open(directory)
    cluster.down(keep=keep)
    if json:
        write_json({"directory": str(cluster.plan.directory), "up": False})
    else:
        print(f"cluster: {cluster.plan.directory}: down")


@app.command()
def status(directory: Directory = None, json: Json = False) -> None:
    """Show the nodes of a cluster, and its daemons with their process ids."""
    state = _open(directory).status()
    if json:
        write_json(state)
        return
    rows = [
        {"part": name, "pid": pid, "node": state["nodes"].get(name.partition(".")[2])}
        for name, pid in state["parts"].items()
    ]
    print(f"cluster: {state['directory']}: {'up' if state['up'] else 'incomplete' if state['parts'] else 'down'}")
    write_rows(rows, parse_columns("part=PART pid=PID> node=NODE_STATE"), Form.TABLE)


@app.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def execute(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="Command with its arguments.")],
    directory: Directory = None,
    user: Annotated[str | None, typer.Option("--user", help="Run as this existing user.")] = None,
) -> None:
    """Run a command in the cluster's environment, such as sbatch, squeue or salus."""
    import pwd
    import subprocess

    cluster = _open(directory)
    plan = cluster.plan
    if not cluster.is_up():
        raise RequestError(f"cluster: {plan.directory}: not running; start it with salus cluster up")
    try:
        entry = pwd.getpwnam(user) if user else None
    except KeyError:
        raise RequestError(
            f"cluster: exec: no user {user} on this machine; use an existing one, such as games"
        ) from None
    # PYTHON is an interpreter that jobs can run. Other users may not have access to the one that runs this program.
    home = {"HOME": str(plan.path("work")), "USER": entry.pw_name, "PYTHON": cluster.python} if entry else {}
    # salus asks the daemon of its node. This machine's name is not a node of the cluster, so name the first one.
    node = {"SLURMD_NODENAME": os.environ.get("SLURMD_NODENAME", plan.nodes[0])}
    ended = subprocess.run(
        cluster.command(command, entry),
        env={**os.environ, **plan.environment(), "PATH": plan.search_path(), **node, **home},
        cwd=plan.path("work"),
        check=False,
    )
    raise typer.Exit(ended.returncode if ended.returncode >= 0 else 128 - ended.returncode)
