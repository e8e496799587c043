"""The configuration files of a private cluster, as text from its plan.

Everything here is for one machine: many nodes on one host, no cgroups, a throw-away database. What an admin needs for a
real cluster is in etc/slurm/ and docs/admin-guide.md.
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
# As the wheel, the Debian package and a checkout have it.
SPANK_LIBRARIES = (
    PLUGIN_ROOT / "spank" / "salus_spank.so",
    PLUGIN_ROOT.parent / "salus_spank.so",
    PLUGIN_ROOT.parent / "build" / "spank" / "salus_spank.so",
)

# Character devices that no driver serves: Slurm only looks at type and number, and they must differ (a device cgroup
# refuses two nodes with the same one). 240 to 254 is the range for local use.
DEVICE_MAJOR = 241
# Shorter than the defaults, for people and tests that wait; a plan may name its own.
QUICK_LINES = (
    "ReadmitInterval=1",
    "ReconcileInterval=2",
    "LedgerInterval=1",
    "UsageInterval=2",
    "AccountingInterval=3",
)


def slurm_conf(plan: ClusterPlan) -> str:
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
    return "\n".join(
        [
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
            # sched_interval: a job that becomes eligible by time (a requeued one) is no change that backfill looks at.
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
            "",
        ]
    )


def gres_conf(plan: ClusterPlan) -> str:
    lines = []
    for node in plan.nodes:
        for index in range(plan.device_count):
            device = plan.device_path(node, index)
            lines.append(f"NodeName={node} Name=gpu File={device}")
            lines.append(f"NodeName={node} Name=shard Count={plan.device_shards} File={device}")
        lines.append(f"NodeName={node} Name=salus Count=64")
    return "\n".join([*lines, ""])


def slurmdbd_conf(plan: ClusterPlan) -> str:
    return "\n".join(
        [
            f"AuthType=auth/munge\nAuthInfo=socket={plan.munge_socket}",
            f"DbdHost=localhost\nDbdPort={plan.ports.database}\nSlurmUser=slurm",
            f"LogFile={plan.path('log', 'slurmdbd.log')}\nPidFile={plan.path('state', 'slurmdbd.pid')}",
            "DebugLevel=info\nStorageType=accounting_storage/mysql\nStorageHost=localhost",
            "StorageUser=slurm\nStorageLoc=slurm_acct_db",
            "",
        ]
    )


def mariadb_conf(plan: ClusterPlan) -> str:
    # Sizes as small and writes as lazy as they go: the database lives as long as the cluster.
    return "\n".join(
        [
            "[mysqld]",
            f"datadir={plan.path('mysql', 'data')}\nsocket={plan.path('mysql', 'mysql.sock')}",
            f"pid-file={plan.path('mysql', 'mysqld.pid')}\nlog-error={plan.path('mysql', 'mysqld.log')}",
            f"tmpdir={plan.path('mysql')}",
            "skip-networking\nuser=mysql\nskip-log-bin\nperformance_schema=OFF",
            "innodb_buffer_pool_size=32M\ninnodb_log_file_size=16M\ninnodb_flush_log_at_trx_commit=0",
            "innodb_doublewrite=0\ninnodb_lock_wait_timeout=900",
            "",
        ]
    )


def hook_script(plan: ClusterPlan, module: str) -> str:
    """The Prolog or Epilog script of this cluster: it runs the shipped hook with the socket of this node's daemon."""
    python = sys.executable if plan.root is None else "/usr/bin/python3"
    socket = plan.path("run", "$SLURMD_NODENAME", "salusd.sock")
    # A cluster without salusd must not wait for one at every job.
    connect = "" if plan.with_daemons else " --connect 0"
    run = f'exec "{python}" -I -S "{plan.path("lib", module)}.py" --socket "{socket}"{connect}'
    return f'#!/bin/sh\nexport SLURM_CONF="{plan.slurm_conf}"\n{run}\n'


def slurm_wrapper(plan: ClusterPlan, program: str) -> str:
    """A command of another root, for our own daemons that run outside it."""
    return f'#!/bin/sh\nexec chroot "{plan.root}" {program} "$@"\n'


def spank_library(plan: ClusterPlan) -> Path:
    """The plugin, built for the release of this cluster."""
    if plan.root is not None:
        return plan.root / "opt" / "spank" / "build" / "salus_spank.so"
    return next((path for path in SPANK_LIBRARIES if path.is_file()), SPANK_LIBRARIES[-1])


def plugstack_conf(plan: ClusterPlan, on_loss: str) -> str:
    # No socket= here: all nodes share this file, and slurmd's environment names the socket of its daemon.
    return f"required {plan.path('lib', 'salus_spank.so')} on_loss={on_loss}\n"


def write_files(plan: ClusterPlan, release: tuple[int, int]) -> None:
    """Make the directory's tree: folders with their owners, files, device nodes."""
    owners = {"log": "slurm", "state": "slurm", "mysql": "mysql"}
    for name in ("etc", "run", "lib", "dev", "munge", "spool", "db", "log", "state", "mysql", "work", "bin"):
        folder = plan.path(name)
        folder.mkdir(mode=0o755)
        if name in owners:
            os.chown(folder, *plan.account_uid(owners[name]))
    plan.path("munge").chmod(0o700)
    plan.path("db").chmod(0o700)
    plan.path("work").chmod(0o1777)
    plan.path("run", "admitd").mkdir()
    etc = plan.path("etc")
    (etc / "slurm.conf").write_text(slurm_conf(plan))
    (etc / "gres.conf").write_text(gres_conf(plan))
    (etc / "my.cnf").write_text(mariadb_conf(plan))
    database = etc / "slurmdbd.conf"
    database.touch(mode=0o600)
    database.write_text(slurmdbd_conf(plan))
    os.chown(database, *plan.account_uid("slurm"))
    if release >= (23, 2):
        (etc / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
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
    """Nodes whose device `index` runs on a core, by core: devices take the cores of this machine in turn."""
    found: dict[int, list[str]] = {}
    for position, node in enumerate(plan.nodes):
        found.setdefault(cpus[(position * plan.device_count + index) % len(cpus)], []).append(node)
    return found


def write_commands(plan: ClusterPlan) -> None:
    """`salus`, `salus-acct` and `python` for the cluster's users, who may not be able to enter the place of ours."""
    python = interpreter(plan)
    commands = {"salus": "-m cli.main", "salus-acct": "-m cli.acct.main", "python": ""}
    for name, module in commands.items():
        path = f'export PYTHONPATH="{plan.shown(TREE)}"\n' if module else ""
        program = plan.path("bin", name)
        program.write_text(f'#!/bin/sh\n{path}exec "{python}" {module} "$@"\n')
        program.chmod(0o755)


def salus_conf(plan: ClusterPlan) -> str:
    cpus = sorted(os.sched_getaffinity(0))
    own_keys = {line.partition("=")[0] for line in plan.salus_lines}
    devices = [
        f"DeviceName=host{index} Type=host Nodes={','.join(nodes)} Memory={plan.device_bytes // MIB}M Cores={core}"
        for index in range(plan.device_count)
        for core, nodes in device_cores(plan, index, cpus).items()
    ]
    return "\n".join(
        [
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
            "",
        ]
    )


def write_salus_files(plan: ClusterPlan, release: tuple[int, int]) -> None:
    etc = plan.path("etc")
    plan.salus_conf.write_text(salus_conf(plan))
    config = load_or_raise(plan.salus_conf)
    (etc / FILE_NAME).write_text(lua_table(config, plan.device_shards, plan.account_uid("slurm")[0], release))
    for module in ("prolog", "epilog"):
        script = etc / module
        script.write_text(hook_script(plan, module))
        script.chmod(0o755)
    for module in ("prolog", "epilog", "hook"):
        shutil.copyfile(PLUGIN_ROOT / "hooks" / f"{module}.py", plan.path("lib", f"{module}.py"))
    if plan.root is not None:
        for program in ("squeue", "sinfo", "scontrol", "sacct", "sacctmgr"):
            plan.path("bin", program).write_text(slurm_wrapper(plan, program))
            plan.path("bin", program).chmod(0o755)
    (etc / "plugstack.conf").write_text(plugstack_conf(plan, config.settings.gate.on_daemon_loss))
    # Copies, because slurmctld reads the script as SlurmUser, who may not enter the directory that we are installed in.
    shutil.copyfile(PLUGIN_ROOT / "lua" / "job_submit.lua", etc / "job_submit.lua")
    library = plan.path("lib", "salus_spank.so")
    shutil.copyfile(spank_library(plan), library)
    library.chmod(0o755)
