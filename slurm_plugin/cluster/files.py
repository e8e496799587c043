"""Writes the files of a private cluster. The functions named after a file return its lines.

Everything here is for one machine: many nodes on one host, no cgroups, a throw-away database. For a real cluster, see
etc/slurm/ and docs/admin-guide.md.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from pathlib import Path

from nodedaemon.config import load_or_raise
from nodedaemon.core.types import MIB
from slurm_plugin.cluster.interpreter import interpreter
from slurm_plugin.cluster.plan import TREE, ClusterPlan
from slurm_plugin.lua.table import FILE_NAME, lua_table

PLUGIN_ROOT = Path(__file__).resolve().parent.parent
# In the wheel, in the Debian package and in a checkout.
SPANK_LIBRARIES = (
    PLUGIN_ROOT / "spank" / "salus_spank.so",
    PLUGIN_ROOT.parent / "salus_spank.so",
    PLUGIN_ROOT.parent / "build" / "spank" / "salus_spank.so",
)

# Character devices without a driver: Slurm looks only at type and number. The numbers must differ, because a device
# cgroup refuses duplicates. 240 to 254 is the range for local use.
DEVICE_MAJOR = 241
# Shorter than the defaults, because people and tests wait; `salus_lines` of the plan override them.
QUICK_LINES = (
    "ReadmitInterval=1",
    "ReconcileInterval=2",
    "LedgerInterval=1",
    "UsageInterval=2",
    "AccountingInterval=3",
)


def slurm_conf(plan: ClusterPlan) -> list[str]:
    ports = plan.ports
    node_lines = [
        f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={plan.cores} RealMemory=4000 "
        f"Gres=gpu:{plan.device_count},shard:{plan.device_count * plan.device_shards},salus:64 State=UNKNOWN"
        for node, port in zip(plan.nodes, ports.nodes, strict=True)
    ]
    hooks = [
        "JobSubmitPlugins=lua",
        f"Prolog={plan.path('etc', 'prolog')}",
        f"Epilog={plan.path('etc', 'epilog')}",
        "PrologFlags=Alloc",
        f"PlugStackConfig={plan.path('etc', 'plugstack.conf')}",
    ]
    return [
        f"ClusterName={plan.name}",
        f"SlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort={ports.controller}",
        "SlurmUser=slurm\nAuthType=auth/munge\nCredType=cred/munge",
        f"AuthInfo=socket={plan.munge_socket}",
        "MpiDefault=none\nReturnToService=2",
        f"SlurmctldPidFile={plan.path('state', 'slurmctld.pid')}",
        f"SlurmdPidFile={plan.path('run', '%n', 'slurmd.pid')}",
        f"SlurmdSpoolDir={plan.path('spool', '%n')}",
        f"StateSaveLocation={plan.path('state')}",
        f"SlurmctldLogFile={plan.path('log', 'slurmctld.log')}",
        f"SlurmdLogFile={plan.path('log', 'slurmd.%n.log')}",
        "SlurmctldDebug=info\nSlurmdDebug=info",
        "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSwitchType=switch/none",
        "SchedulerType=sched/backfill",
        # sched_interval: backfill does not notice a requeued job that becomes eligible by time.
        "SchedulerParameters=sched_min_interval=0,sched_interval=2,bf_interval=2,batch_sched_delay=0",
        "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core",
        "JobAcctGatherType=jobacct_gather/none",
        "AccountingStorageType=accounting_storage/slurmdbd",
        f"AccountingStorageHost=localhost\nAccountingStoragePort={ports.database}",
        f"AccountingStoragePass={plan.munge_socket}",
        "AccountingStorageTRES=gres/gpu,gres/salus,gres/shard",
        "AccountingStoreFlags=job_comment",
        "KillWait=5\nSlurmdParameters=config_overrides",
        "GresTypes=gpu,shard,salus",
        *(hooks if plan.with_salus else []),
        *plan.slurm_lines,
        *node_lines,
        f"PartitionName=main Nodes={','.join(plan.nodes)} Default=YES MaxTime=1:00:00 State=UP OverSubscribe=NO",
    ]


def gres_conf(plan: ClusterPlan) -> list[str]:
    lines = []
    for node in plan.nodes:
        for index in range(plan.device_count):
            device = plan.device_path(node, index)
            lines.append(f"NodeName={node} Name=gpu File={device}")
            lines.append(f"NodeName={node} Name=shard Count={plan.device_shards} File={device}")
        lines.append(f"NodeName={node} Name=salus Count=64")
    return lines


def slurmdbd_conf(plan: ClusterPlan) -> list[str]:
    return [
        f"AuthType=auth/munge\nAuthInfo=socket={plan.munge_socket}",
        f"DbdHost=localhost\nDbdPort={plan.ports.database}\nSlurmUser=slurm",
        f"LogFile={plan.path('log', 'slurmdbd.log')}\nPidFile={plan.path('state', 'slurmdbd.pid')}",
        "DebugLevel=info\nStorageType=accounting_storage/mysql\nStorageHost=localhost",
        "StorageUser=slurm\nStorageLoc=slurm_acct_db",
    ]


def mariadb_conf(plan: ClusterPlan) -> list[str]:
    # Minimal sizes and lazy writes: the database lives only as long as the cluster.
    return [
        "[mysqld]",
        f"datadir={plan.path('mysql', 'data')}\nsocket={plan.path('mysql', 'mysql.sock')}",
        f"pid-file={plan.path('mysql', 'mysqld.pid')}\nlog-error={plan.path('mysql', 'mysqld.log')}",
        f"tmpdir={plan.path('mysql')}",
        "skip-networking\nuser=mysql\nskip-log-bin\nperformance_schema=OFF",
        "innodb_buffer_pool_size=32M\ninnodb_log_file_size=16M\ninnodb_flush_log_at_trx_commit=0",
        "innodb_doublewrite=0\ninnodb_lock_wait_timeout=900",
    ]


def hook_script(plan: ClusterPlan, module: str) -> list[str]:
    """The Prolog or Epilog script: it runs our hook with the socket of this node's daemon."""
    python = sys.executable if plan.root is None else "/usr/bin/python3"
    socket = plan.path("run", "$SLURMD_NODENAME", "salusd.sock")
    # A cluster without salusd must not wait for one at every job.
    connect = "" if plan.with_daemons else " --connect 0"
    run = f'exec "{python}" -I -S "{plan.path("lib", module)}.py" --socket "{socket}"{connect}'
    return ["#!/bin/sh", f'export SLURM_CONF="{plan.slurm_conf}"', run]


def spank_library(plan: ClusterPlan) -> Path:
    """The plugin, built for the release of this cluster."""
    if plan.root is not None:
        return plan.root / "opt" / "spank" / "build" / "salus_spank.so"
    return next((path for path in SPANK_LIBRARIES if path.is_file()), SPANK_LIBRARIES[-1])


def write_lines(path: Path, lines: list[str], mode: int = 0o644) -> None:
    path.touch(mode)
    path.write_text("".join(f"{line}\n" for line in lines))
    path.chmod(mode)


def write_files(plan: ClusterPlan, release: tuple[int, int]) -> None:
    """Create the folders with their owners, the files and the device nodes."""
    owners = {"log": "slurm", "state": "slurm", "mysql": "mysql"}
    modes = {"munge": 0o700, "db": 0o700, "work": 0o1777}
    for name in ("etc", "run", "lib", "dev", "munge", "spool", "db", "log", "state", "mysql", "work", "bin"):
        folder = plan.path(name)
        folder.mkdir()
        folder.chmod(modes.get(name, 0o755))
        if name in owners:
            os.chown(folder, *plan.account_uid(owners[name]))
    plan.path("run", "admitd").mkdir()
    etc = plan.path("etc")
    write_lines(plan.slurm_conf, slurm_conf(plan))
    write_lines(etc / "gres.conf", gres_conf(plan))
    write_lines(etc / "my.cnf", mariadb_conf(plan))
    # slurmdbd refuses a file that others can read.
    write_lines(etc / "slurmdbd.conf", slurmdbd_conf(plan), 0o600)
    os.chown(etc / "slurmdbd.conf", *plan.account_uid("slurm"))
    if release >= (23, 2):
        write_lines(etc / "cgroup.conf", ["CgroupPlugin=disabled"])
    for position, node in enumerate(plan.nodes):
        plan.path("run", node).mkdir()
        plan.path("spool", node).mkdir()
        plan.path("dev", node).mkdir()
        for index in range(plan.device_count):
            number = os.makedev(DEVICE_MAJOR, position * plan.device_count + index)
            os.mknod(plan.device_path(node, index), stat.S_IFCHR | 0o666, number)
    if plan.with_salus:
        write_salus_files(plan, release)


def device_cores(plan: ClusterPlan, index: int, cpus: list[int]) -> dict[int, list[str]]:
    """Maps each core to the nodes whose device `index` runs on it; devices take this machine's cores in turn."""
    nodes: dict[int, list[str]] = {}
    for position, node in enumerate(plan.nodes):
        nodes.setdefault(cpus[(position * plan.device_count + index) % len(cpus)], []).append(node)
    return nodes


def write_commands(plan: ClusterPlan) -> None:
    """Write `salus`, `salus-acct` and `python` for the cluster's users, who may not be able to reach our own."""
    python = interpreter(plan)
    commands = {"salus": "-sP -m cli.main", "salus-acct": "-sP -m cli.acct.main", "python": ""}
    for name, module in commands.items():
        path = [f'export PYTHONPATH="{plan.shown(TREE)}"'] if module else []
        write_lines(plan.path("bin", name), ["#!/bin/sh", *path, f'exec "{python}" {module} "$@"'], 0o755)


def salus_conf(plan: ClusterPlan) -> list[str]:
    cpus = sorted(os.sched_getaffinity(0))
    own_keys = {line.partition("=")[0] for line in plan.salus_lines}
    devices = [
        f"DeviceName=host{index} Type=host Nodes={','.join(nodes)} Memory={plan.device_bytes // MIB}M Cores={core}"
        for index in range(plan.device_count)
        for core, nodes in device_cores(plan, index, cpus).items()
    ]
    return [
        f"ClusterName={plan.name}\nSingleHost=yes\nAutoDetect=off",
        f"LaneReserve={plan.lane_reserve_bytes // MIB}M\nShardUnit={plan.unit_bytes // MIB}M",
        f"AdmissionSocket={plan.admission_socket}\nAdmissionHost=127.0.0.1\nAdmissionPort={plan.ports.admission}",
        "AdmissionMetricsPort=0\nMetricsPort=0",
        *(line for line in QUICK_LINES if line.partition("=")[0] not in own_keys),
        f"SlurmConf={plan.slurm_conf}",
        *([f"SlurmBinDir={plan.path('bin')}"] if plan.root else []),
        f"DaemonSocket={plan.path('run', '%n', 'salusd.sock')}",
        f"ControlSocket={plan.path('run', '%n', 'control.sock')}",
        f"StateDir={plan.path('db', '%n')}",
        f"StorageUrl=sqlite:///{plan.path('db', 'salus.db')}",
        *([f"AdaptorDir={plan.shown(TREE / 'nodedaemon' / 'job')}"] if plan.is_tree_shown else []),
        *plan.salus_lines,
        *devices,
    ]


def write_salus_files(plan: ClusterPlan, release: tuple[int, int]) -> None:
    etc = plan.path("etc")
    write_lines(plan.salus_conf, salus_conf(plan))
    config = load_or_raise(plan.salus_conf)
    (etc / FILE_NAME).write_text(lua_table(config, plan.device_shards, plan.account_uid("slurm")[0], release))
    for module in ("prolog", "epilog"):
        write_lines(etc / module, hook_script(plan, module), 0o755)
    for module in ("prolog", "epilog", "hook"):
        shutil.copyfile(PLUGIN_ROOT / "hooks" / f"{module}.py", plan.path("lib", f"{module}.py"))
    if plan.root is not None:
        # Commands of the other root, for our own daemons, which run outside it.
        for program in ("squeue", "sinfo", "scontrol", "sacct", "sacctmgr"):
            write_lines(plan.path("bin", program), ["#!/bin/sh", f'exec chroot "{plan.root}" {program} "$@"'], 0o755)
    # No socket= here: all nodes share this file, and slurmd's environment names the socket of its daemon.
    plugin = f"required {plan.path('lib', 'salus_spank.so')} on_loss={config.settings.gate.on_daemon_loss}"
    write_lines(etc / "plugstack.conf", [plugin])
    # Copies, because slurmctld reads the script as SlurmUser, who may not enter the directory that we are installed in.
    shutil.copyfile(PLUGIN_ROOT / "lua" / "job_submit.lua", etc / "job_submit.lua")
    library = plan.path("lib", "salus_spank.so")
    shutil.copyfile(spank_library(plan), library)
    library.chmod(0o755)
