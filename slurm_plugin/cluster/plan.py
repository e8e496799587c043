"""What a private cluster consists of: nodes, devices, ports and paths, fixed before anything starts.

The plan is written to `plan.json` in the cluster's directory, so that every later command finds the same cluster.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from nodedaemon.core.errors import RequestError
from nodedaemon.core.memory import device_units
from nodedaemon.core.types import MIB
from nodedaemon.wire.trust import read_own_file, require_own_directory, require_own_place

# The path of a Unix socket has at most 107 bytes; the longest name below the directory needs 40 of them.
DIRECTORY_LENGTH_MAX = 66
#: Advice in errors about a directory that another user could have created.
ADVICE = "choose another with --dir"
TREE = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Ports:
    controller: int = 0
    database: int = 0
    admission: int = 0
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    directory: Path
    node_count: int = 2
    device_count: int = 2
    device_bytes: int = 1024 * MIB
    lane_reserve_bytes: int = 256 * MIB
    unit_bytes: int = 16 * MIB
    cores: int = 16
    #: Start salus-admitd and wire job_submit.lua, SPANK, Prolog and Epilog into Slurm; plain Slurm otherwise.
    with_salus: bool = True
    #: Start one salusd per node.
    with_daemons: bool = True
    #: Shards per device, instead of the number that follows from capacity, reserve and unit.
    shard_count: int | None = None
    #: Extra lines for slurm.conf and salus.conf.
    slurm_lines: tuple[str, ...] = ()
    salus_lines: tuple[str, ...] = ()
    name: str = "salus"
    #: A root file system with another release of Slurm. Slurm's programs run inside it, ours outside.
    root: Path | None = None
    #: Whether our tree is mounted in the cluster's directory, because the cluster's users cannot reach it elsewhere.
    is_tree_shown: bool = False
    ports: Ports = field(default_factory=Ports)

    def __post_init__(self) -> None:
        if len(str(self.directory)) > DIRECTORY_LENGTH_MAX or not self.directory.is_absolute():
            raise RequestError(
                f"cluster: directory {self.directory}: must be an absolute path of at most {DIRECTORY_LENGTH_MAX} "
                "bytes, because the paths of sockets are short; choose another with --dir"
            )
        if not 1 <= self.node_count <= 64 or not 1 <= self.device_count <= 16:
            raise RequestError(
                f"cluster: {self.node_count} nodes with {self.device_count} devices: out of range; "
                "choose 1 to 64 nodes and 1 to 16 devices"
            )

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(f"node{number}" for number in range(1, self.node_count + 1))

    @property
    def device_shards(self) -> int:
        if self.shard_count is not None:
            return self.shard_count
        return device_units(self.device_bytes, self.lane_reserve_bytes, self.unit_bytes)

    def path(self, *parts: str) -> Path:
        return self.directory.joinpath(*parts)

    @property
    def slurm_conf(self) -> Path:
        return self.path("etc", "slurm.conf")

    @property
    def salus_conf(self) -> Path:
        return self.path("etc", "salus.conf")

    @property
    def munge_socket(self) -> Path:
        return self.path("run", "munge.sock")

    @property
    def admission_socket(self) -> Path:
        return self.path("run", "admitd", "admitd.sock")

    def node_socket(self, node: str) -> Path:
        return self.path("run", node, "salusd.sock")

    def device_path(self, node: str, index: int) -> Path:
        return self.path("dev", node, f"device{index}")

    def shown(self, path: Path) -> Path:
        """The path by which the cluster's users reach one of our files; it differs if our tree is mounted."""
        if not self.is_tree_shown:
            return path
        for source, target in self.shown_trees():
            if path.is_relative_to(source):
                return target / path.relative_to(source)
        return path

    def shown_trees(self) -> tuple[tuple[Path, Path], ...]:
        """What the supervisor mounts, as (source, target): our sources, and the environment with their packages."""
        prefix = Path(sys.prefix)
        environment = () if prefix.is_relative_to(TREE) else ((prefix, self.path("environment")),)
        return (TREE, self.path("tree")), *environment

    def search_path(self) -> str:
        """PATH of the cluster's users. It includes `salus` and our other commands, as on a cluster with Salus."""
        # Our commands cannot run in another root. There, bin/ is for our daemons, which run outside it.
        own = f"{self.path('bin')}:" if self.root is None else ""
        return f"{own}{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

    def slurm_command(self, *argv: str) -> tuple[str, ...]:
        """A command of Slurm, munge or MariaDB as this cluster runs it."""
        return argv if self.root is None else ("chroot", str(self.root), *argv)

    def account_uid(self, name: str) -> tuple[int, int]:
        """uid and gid of an account in the root where the daemons run."""
        lines = (self.root or Path("/")).joinpath("etc", "passwd").read_text().splitlines()
        fields = next((line.split(":") for line in lines if line.startswith(f"{name}:")), None)
        if fields is None:
            raise RequestError(
                f"cluster: account {name}: does not exist; run: apt-get install slurmctld mariadb-server"
            )
        return int(fields[2]), int(fields[3])

    def environment(self) -> dict[str, str]:
        """The variables that point Slurm's commands and ours to this cluster."""
        return {
            "SLURM_CONF": str(self.slurm_conf),
            "SALUS_CONF": str(self.salus_conf),
            "SALUS_MUNGE_SOCKET": str(self.munge_socket),
        }

    def save(self) -> None:
        path = self.path("plan.json")
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self, enc_hook=str)))
        path.chmod(0o644)

    @staticmethod
    def load(directory: Path) -> ClusterPlan:
        """Read the plan of a cluster that was started in `directory`, by root or the caller.

        Commands act on the plan as root: they kill processes and remove the directory. A plan that another user could
        have written is therefore refused, and so is a plan of another directory.
        """
        path = directory / "plan.json"
        if not os.path.lexists(path):
            raise RequestError(f"cluster: {directory}: no cluster here; start one with salus cluster up")
        require_own_directory(directory, ADVICE)
        require_own_place(directory, ADVICE)
        try:
            plan = msgspec.json.decode(read_own_file(path), type=ClusterPlan, dec_hook=lambda kind, value: kind(value))
        except msgspec.MsgspecError as error:
            raise RequestError(f"cluster: {path}: {error}; another release wrote it; remove {directory}") from error
        if plan.directory != Path(os.path.normpath(directory)):
            raise RequestError(f"cluster: {path}: it is the plan of {plan.directory}; use --dir {plan.directory}")
        return plan
