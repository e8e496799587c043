"""The checks of `salus doctor` on a node: each result says what was found and what to do about it.

A check changes nothing and does not raise, because it has to work on a broken node.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from nodedaemon.config import Config, Settings
from nodedaemon.config.choices import AutoDetect, DeviceType, ShareMode
from nodedaemon.core.errors import SalusError
from nodedaemon.drivers.cuda import CudaDevice, discover, load_driver, loaded_library
from nodedaemon.drivers.mps import CONTROL as MPS_CONTROL
from nodedaemon.drivers.nvml import Nvml
from nodedaemon.service.paths import adaptor_dir

VERSION_MINIMUM = 10020


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of one check. `advice` is empty if there is nothing to do."""

    check: str
    level: Level
    seen: str
    advice: str = ""


Check = Callable[[Config, Settings, str], Iterator[Diagnosis]]


def examine(config: Config, node: str) -> tuple[Diagnosis, ...]:
    """Run every check of this node, in the order in which a job depends on them."""
    settings = config.for_node(node)
    return tuple(result for check in CHECKS for result in check(config, settings, node))


def wants_gpus(config: Config, settings: Settings, node: str) -> bool:
    return names_gpus(config, node) or settings.daemon.auto_detect is AutoDetect.NVML


def names_gpus(config: Config, node: str) -> bool:
    return any(device.type is DeviceType.CUDA for device in config.devices_of(node))


def check_driver(config: Config, settings: Settings, node: str) -> Iterator[Diagnosis]:
    if not wants_gpus(config, settings, node):
        yield Diagnosis("driver", Level.NOTE, "no GPU is configured", "")
        return
    missing = Level.FAILURE if names_gpus(config, node) else Level.NOTE
    try:
        driver = load_driver()
    except SalusError as error:
        yield Diagnosis("driver", missing, str(error), "install the GPU driver and salus[cuda], or set AutoDetect=off")
        return
    version = int(driver.cuDriverGetVersion()[1])
    seen = f"CUDA {version // 1000}.{version % 1000 // 10} at {loaded_library('libcuda.so')}"
    if version < VERSION_MINIMUM:
        yield Diagnosis("driver", Level.FAILURE, seen, "lanes need CUDA 10.2 or later: update the driver")
    else:
        yield Diagnosis("driver", Level.OK, seen)
    yield from _check_gpus(settings)


def _check_gpus(settings: Settings) -> Iterator[Diagnosis]:
    try:
        nvml = Nvml()
        listings, lost = nvml.devices(), nvml.lost_indices()
    except SalusError as error:
        advice = "install the libnvidia-ml.so.1 that matches the driver; if it is there, see dmesg and reset the GPU"
        yield Diagnosis("nvml", Level.FAILURE, str(error), advice)
        return
    if lost:
        advice = "see dmesg for its Xid; drain the node and reset or replace it"
        yield Diagnosis("nvml", Level.FAILURE, f"lost: GPU {', '.join(map(str, lost))}", advice)
    yield Diagnosis("nvml", Level.OK, f"{len(listings)} devices: {', '.join(listing.name for listing in listings)}")
    try:
        devices = discover(nvml, os.environ.get("CUDA_VISIBLE_DEVICES"))
    except SalusError as error:
        yield Diagnosis("lanes", Level.FAILURE, str(error), "exclude the device that does not support lanes")
        return
    for device in devices:
        usable, own = device.usable_bytes >> 20, device.context_bytes >> 20
        seen = f"{device.name}: VMM and file-descriptor export; {usable} MiB usable, own context {own} MiB"
        yield Diagnosis("lanes", Level.OK, seen)
        yield _look_at_limits(nvml, device)
        try:
            device.read(())
        except SalusError as error:
            yield Diagnosis("faults", Level.FAILURE, str(error), "drain the node and reset the GPU")
        device.close()
    if settings.daemon.share_mode is ShareMode.MPS and shutil.which(MPS_CONTROL) is None:
        yield Diagnosis("mps", Level.FAILURE, f"{MPS_CONTROL}: not found", "install it or set ShareMode=timeslice")
    elif settings.daemon.share_mode is ShareMode.MPS:
        yield Diagnosis("mps", Level.OK, f"{shutil.which(MPS_CONTROL)}")
    else:
        yield Diagnosis("mps", Level.NOTE, "ShareMode=timeslice: lanes that run at once share the GPU by time slices")


def _look_at_limits(nvml: Nvml, device: CudaDevice) -> Diagnosis:
    """Whether the driver itself can limit a job's memory."""
    try:
        has_limits = nvml.has_memory_limits(device.uuid)
    except SalusError as error:
        return Diagnosis("memory limits", Level.WARNING, str(error), "only libsalus limits the memory of jobs")
    if has_limits and Path("/sys/fs/cgroup/cgroup.controllers").exists():
        return Diagnosis("memory limits", Level.OK, f"{device.name}: the driver limits memory by cgroup")
    what = "cgroup version 2 is not mounted at /sys/fs/cgroup" if has_limits else "the driver has no limits by cgroup"
    advice = "none needed: libsalus limits the memory of jobs; a newer driver with cgroup version 2 limits any process"
    return Diagnosis("memory limits", Level.NOTE, f"{device.name}: {what}", advice)


def check_device_files(config: Config, settings: Settings, node: str) -> Iterator[Diagnosis]:
    if not wants_gpus(config, settings, node) or not loaded_library("libcuda.so"):
        return
    names = sorted(Path("/dev").glob("nvidia[0-9]*"))
    if not names:
        advice = "without them Slurm cannot confine a job to its GPU; load the nvidia modules (an emulator has none)"
        yield Diagnosis("device files", Level.WARNING, "no /dev/nvidia0", advice)
        return
    for path in (Path("/dev/nvidiactl"), Path("/dev/nvidia-uvm"), *names):
        if not os.access(path, os.R_OK | os.W_OK):
            yield Diagnosis("device files", Level.FAILURE, f"{path}: not accessible", "run nvidia-modprobe -u")
            return
    yield Diagnosis("device files", Level.OK, f"{len(names)} devices")


def check_cgroups(_config: Config, _settings: Settings, _node: str) -> Iterator[Diagnosis]:
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        yield Diagnosis("cgroup", Level.OK, "version 2")
    elif Path("/sys/fs/cgroup/memory").exists() or Path("/sys/fs/cgroup/devices").exists():
        yield Diagnosis("cgroup", Level.OK, "version 1: the GPU driver can limit memory by cgroup only with version 2")
    else:
        advice = "jobs are found through Slurm's pid list, which is slower; mount cgroups and use proctrack/cgroup"
        yield Diagnosis("cgroup", Level.WARNING, "none mounted", advice)


def check_job_libraries(config: Config, settings: Settings, node: str) -> Iterator[Diagnosis]:
    directory = adaptor_dir(settings)
    wanted = [directory / "libsalus" / "libsalus.so"]
    if wants_gpus(config, settings, node):
        wanted.append(directory / "libsalus" / "cuda" / "libcuda.so.1")
    for path in wanted:
        if not path.exists():
            yield Diagnosis("libsalus", Level.FAILURE, f"{path}: not found", "run make native, or set AdaptorDir")
        elif not os.access(path, os.R_OK) or not path.stat().st_mode & stat.S_IROTH:
            yield Diagnosis("libsalus", Level.FAILURE, f"{path}: jobs cannot read it", f"chmod a+r {path}")
        else:
            yield Diagnosis("libsalus", Level.OK, str(path))
    try:
        ctypes.CDLL("libatomic.so.1")
    except OSError:
        yield Diagnosis("libatomic", Level.FAILURE, "libatomic.so.1: not found", "install libatomic1")


def check_sockets(_config: Config, settings: Settings, _node: str) -> Iterator[Diagnosis]:
    for name, path, kind in (
        ("DaemonSocket", Path(settings.daemon.socket), socket.SOCK_SEQPACKET),
        ("ControlSocket", Path(settings.daemon.control_socket), socket.SOCK_STREAM),
    ):
        yield _look_at_socket(name, path, kind)


def _look_at_socket(name: str, path: Path, kind: socket.SocketKind) -> Diagnosis:
    try:
        folder, found = path.parent.stat(), path.lstat()
    except OSError as error:
        return Diagnosis("sockets", Level.WARNING, f"{name} {path}: {error.strerror}", "systemctl start salusd")
    if folder.st_uid not in (0, os.geteuid()) or stat.S_IMODE(folder.st_mode) & 0o022:
        advice = f"chown root {path.parent}; chmod go-w {path.parent}"
        return Diagnosis("sockets", Level.FAILURE, f"{path.parent}: others can replace the socket there", advice)
    if not stat.S_ISSOCK(found.st_mode):
        return Diagnosis("sockets", Level.FAILURE, f"{name} {path}: not a socket", f"remove {path} and restart salusd")
    if stat.S_IMODE(found.st_mode) & 0o222 != 0o222:
        return Diagnosis("sockets", Level.FAILURE, f"{name} {path}: jobs cannot connect", "systemctl restart salusd")
    with socket.socket(socket.AF_UNIX, kind) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(str(path))
        except OSError as error:
            return Diagnosis("sockets", Level.FAILURE, f"{name} {path}: {error.strerror}", "systemctl restart salusd")
    return Diagnosis("sockets", Level.OK, f"{name} {path}: answers")


def check_database(config: Config, _settings: Settings, _node: str) -> Iterator[Diagnosis]:
    from accounting.storage import schema  # noqa: PLC0415 - SQLAlchemy is slow to load
    from accounting.storage.database import open_database  # noqa: PLC0415

    storage = config.settings.storage
    try:
        database = open_database(storage.url, Path(storage.pass_file) if storage.pass_file else None, may_create=False)
    except SalusError as error:
        yield Diagnosis("database", Level.FAILURE, str(error), "run salus-acct db upgrade, or fix StorageUrl")
        return
    try:
        schema.require(database)
        yield Diagnosis("database", Level.OK, f"{database.address}: schema {schema.head()}")
    except SalusError as error:
        yield Diagnosis("database", Level.FAILURE, str(error), "records wait in the spool until it answers")
    finally:
        database.close()


CHECKS: tuple[Check, ...] = (
    check_driver,
    check_device_files,
    check_cgroups,
    check_job_libraries,
    check_sockets,
    check_database,
)
