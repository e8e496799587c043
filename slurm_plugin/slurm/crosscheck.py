"""Compares salus.conf with slurm.conf and gres.conf: reports whatever makes a job wait forever or share by mistake.

Pure: parsed files in, mismatches out. An error is always wrong; a warning may be intended.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain

from nodedaemon.config import Config
from nodedaemon.core.memory import device_units
from nodedaemon.core.types import LaneSharing
from slurm_plugin.slurm import ENFORCEMENT_KEY, GPU_APART_RELEASE, read_enforcement
from slurm_plugin.slurm.slurmconf import SlurmFiles

TRACKED = ("gres/gpu", "gres/salus", "gres/shard")


@dataclass(frozen=True, slots=True)
class ConfigMismatch:
    """Two settings that do not agree, and how to fix it."""

    level: str
    where: str
    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.level}: {self.where}: {self.what}; {self.advice}"


error = partial(ConfigMismatch, "error")
warning = partial(ConfigMismatch, "warning")


def cross_check(config: Config, files: SlurmFiles, release: tuple[int, int] | None = None) -> list[ConfigMismatch]:
    """All mismatches, in the order in which an admin would fix them."""
    found = (_globals(config, files), _enforcement(config, files), _plugin(config, files), _nodes(config, files))
    return [*chain.from_iterable(found), *_mixed(release)]


def _globals(config: Config, files: SlurmFiles) -> Iterator[ConfigMismatch]:
    types = {name.casefold() for name in files.listed("GresTypes")}
    lacking = [name for name in ("gpu", "shard", "salus") if name not in types]
    if lacking:
        yield error("slurm.conf GresTypes", f"lacks {', '.join(lacking)}", "set GresTypes=gpu,shard,salus")
    if "lua" not in files.listed("JobSubmitPlugins"):
        yield error("slurm.conf JobSubmitPlugins", "lacks lua, so no job is ever charged", "set JobSubmitPlugins=lua")
    if not files.values.get("selecttype", "").endswith("cons_tres"):
        yield error(
            "slurm.conf SelectType", "is not select/cons_tres, which counts shards", "set SelectType=select/cons_tres"
        )
    tracked = {name.casefold() for name in files.listed("AccountingStorageTRES")}
    untracked = [name for name in TRACKED if name not in tracked]
    if untracked:
        yield warning("slurm.conf AccountingStorageTRES", f"lacks {', '.join(untracked)}, so sacct does not show them",
                      f"set AccountingStorageTRES={','.join(TRACKED)}")  # fmt: skip
    flags = {flag.casefold() for flag in files.listed("PrologFlags")}
    if "prolog" in files.values and not flags & {"alloc", "contain", "x11"}:
        yield error("slurm.conf PrologFlags", "lacks Alloc, so the Prolog runs after the job has started",
                    "set PrologFlags=Alloc")  # fmt: skip
    for key, why in (("Prolog", "salusd never learns about a job"), ("Epilog", "a job is released late")):
        if key.casefold() not in files.values:
            yield error(f"slurm.conf {key}", f"is not set: {why}", f"see salus-{key.lower()}.example in etc/slurm")
    name = files.values.get("clustername", "")
    if name and name.casefold() != config.settings.cluster.name.casefold():
        yield error(
            "salus.conf ClusterName", f"is {config.settings.cluster.name}, slurm.conf has {name}", "use the same name"
        )
    user = files.values.get("slurmuser", "root")
    if user != config.settings.slurm.user:
        yield error("salus.conf SlurmUser", f"is {config.settings.slurm.user}, slurm.conf has {user}",
                    "use the same user, or salus-admitd refuses slurmctld")  # fmt: skip


def _enforcement(config: Config, files: SlurmFiles) -> Iterator[ConfigMismatch]:
    """Accounts and QOS that Salus trusts must be checked by Slurm, or any user can name any of them."""
    order = config.settings.order
    sharings = {config.settings.lanes.sharing, *(config.for_node(name).lanes.sharing for name in config.node_names())}
    needed = {
        "HighQOS": "qos" if order.high_qos else None,
        "HighAccounts": "associations" if order.high_accounts else None,
        "LaneSharing=account": "associations" if LaneSharing.ACCOUNT in sharings else None,
    }
    enforced = read_enforcement(files.values.get(ENFORCEMENT_KEY.casefold(), ""))
    for key, flag in needed.items():
        if flag is not None and flag not in enforced:
            what = "QOS" if flag == "qos" else "account"
            yield error(f"slurm.conf {ENFORCEMENT_KEY}", f"lacks {flag}, so users may name any {what} ({key})",
                        f"add {flag}: until then salus-admitd refuses what relies on it")  # fmt: skip


def _plugin(config: Config, files: SlurmFiles) -> Iterator[ConfigMismatch]:
    """The plugin does not read salus.conf: its settings are the arguments on its line."""
    if files.plugin is None:
        return
    found = next((word.partition("=")[2] for word in reversed(files.plugin) if word.startswith("on_loss=")), "run")
    wanted = config.settings.gate.on_daemon_loss
    if found != wanted:
        yield warning("plugstack.conf salus_spank.so", f"has on_loss={found}, salus.conf OnDaemonLoss={wanted}",
                      f"write on_loss={wanted} there: the plugin reads only its own line")  # fmt: skip


def _nodes(config: Config, files: SlurmFiles) -> Iterator[ConfigMismatch]:
    unit = config.settings.lanes.shard_unit_bytes
    for node, fields in sorted(files.nodes.items()):
        names = {piece.split(":")[0].casefold() for piece in fields.get("gres", "").split(",") if piece}
        if "salus" not in names:
            continue
        where = f"slurm.conf NodeName={node}"
        if "shard" not in names or "gpu" not in names:
            yield error(where, "has salus without gpu and shard", "print its lines with salus config gres")
            continue
        shards = files.gres_of(node, "shard")
        devices = {file for line in files.gres_of(node, "gpu") for file in line.files}
        if not shards or any(not line.files for line in shards):
            yield error(f"gres.conf {node}", "shard has no File=, so Slurm does not count the shards of each device",
                        "print its lines with salus config gres")  # fmt: skip
            continue
        if {file for line in shards for file in line.files} != devices:
            yield error(f"gres.conf {node}", "shard and gpu name different files", "give both the same File=")
        yield from _counts(config, node, [line.count // len(line.files) for line in shards for _ in line.files], unit)


def _counts(config: Config, node: str, counts: list[int], unit: int) -> Iterator[ConfigMismatch]:
    sized = [device for device in config.devices_of(node) if device.memory_bytes]
    if len(sized) != len(counts):
        return
    for device, count in zip(sized, counts, strict=True):
        reserve = device.settings.lanes.lane_reserve_bytes
        if reserve is None:
            continue
        right = device_units(device.memory_bytes, reserve, unit)
        if count > right:
            yield error(f"gres.conf {node} {device.name}",
                        f"has {count} shards, but memory minus LaneReserve has room for only {right}",
                        "print its lines with salus config gres: more would overfill the device")  # fmt: skip
        elif count < right:
            yield warning(f"gres.conf {node} {device.name}", f"has {count} shards of {right}",
                          "the rest of the device stays unused")  # fmt: skip


def _mixed(release: tuple[int, int] | None) -> Iterator[ConfigMismatch]:
    if release is not None and release < GPU_APART_RELEASE:
        yield warning(f"Slurm {release[0]}.{release[1]:02d}",
                      "may place a gres/gpu job on a device that shared jobs use",
                      "keep Salus nodes in a partition without whole-GPU jobs, or upgrade to 24.11")  # fmt: skip


def gres_lines(config: Config, node: str, devices: list[tuple[str, int, int]]) -> list[str]:
    """The lines of gres.conf for one node. `devices` has file, capacity and reserve of each device."""
    unit = config.settings.lanes.shard_unit_bytes
    lines, shard_total = [], 0
    for file, capacity_bytes, reserve_bytes in devices:
        units = device_units(capacity_bytes, reserve_bytes, unit)
        shard_total += units
        lines.append(f"NodeName={node} Name=gpu File={file}")
        lines.append(f"NodeName={node} Name=shard Count={units} File={file}")
    lines.append(f"NodeName={node} Name=salus Count={max(1, shard_total)}")
    total = f"gpu:{len(devices)},shard:{shard_total},salus:{max(1, shard_total)}"
    return [*lines, f"# slurm.conf: NodeName={node} Gres={total}"]
