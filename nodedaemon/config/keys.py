"""Every key of salus.conf, with its default and a short description.

`make man` generates etc/salus.conf and docs/man/salus.conf.md from this module, and a test compares them. To add a key,
add a field here and use it where it is needed. Attribute names end with their unit.
"""

from dataclasses import dataclass, field

from nodedaemon.config.choices import (
    AdmissionLoss,
    AutoDetect,
    DaemonLoss,
    LogFormat,
    LogLevel,
    ShareMode,
    SlurmAccess,
    StrayAccess,
    UnknownJob,
)
from nodedaemon.config.kinds import (
    DAY_NS,
    HOUR_NS,
    MINUTE_NS,
    Choice,
    Count,
    FilePath,
    Names,
    Numbers,
    Percent,
    Size,
    SizeOrAuto,
    Text,
    Time,
    YesNo,
    port,
)
from nodedaemon.config.spec import Scope, key
from nodedaemon.core.policies import POLICIES
from nodedaemon.core.types import (
    GIB,
    GRANULARITY_BYTES,
    MIB,
    MILLISECOND_NS,
    POLICY_DEFAULT,
    SECOND_NS,
    JobClass,
    LaneSharing,
    OnHang,
    OnOverrun,
)

NODE, PARTITION, DEVICE = Scope.NODE, Scope.PARTITION, Scope.DEVICE


@dataclass(frozen=True)
class Cluster:
    """Cluster and permissions"""

    name: str = key(
        "ClusterName",
        Text(is_optional=False),
        "cluster",
        "The ClusterName of slurm.conf. Accounting records are stored under it.",
        is_live=False,
    )
    is_single_host: bool = key(
        "SingleHost",
        YesNo(),
        False,
        "All daemons run on this machine (workstation, demo), so several nodes may share one SQLite file.",
    )
    admins: tuple[str, ...] = key(
        "Admins", Names(), ("root",), "Users who may drain devices, reload the configuration and change policies."
    )
    operators: tuple[str, ...] = key("Operators", Names(), (), "Users who may see the jobs and profiles of all users.")


@dataclass(frozen=True)
class Lanes:
    """Memory and lanes"""

    lane_reserve_bytes: int | None = key(
        "LaneReserve",
        SizeOrAuto(GRANULARITY_BYTES),
        None,
        "Memory of a device that is reserved for lanes (R). The rest becomes shards. auto: a quarter of the device.",
        NODE,
        DEVICE,
    )
    shard_unit_bytes: int = key(
        "ShardUnit",
        Size(1 * MIB, GIB),
        16 * MIB,
        "Memory that one shard stands for. It must match gres.conf on all nodes.",
    )
    lanes_max: int = key(
        "MaxLanes",
        Count(1, 64),
        4,
        "Lanes that may be open on a device at the same time. Lanes share the device's speed.",
        NODE,
        DEVICE,
    )
    headroom_percent: int = key(
        "Headroom", Percent(), 10, "Added to measured memory, because runs of the same job differ a little.", PARTITION
    )
    on_overrun: OnOverrun = key(
        "OnOverrun",
        Choice(OnOverrun),
        OnOverrun.WARN,
        "What to do with a job that exceeds its profile and headroom: warn or kill.",
        NODE,
    )
    sharing: LaneSharing = key(
        "LaneSharing", Choice(LaneSharing), LaneSharing.USER, "Whose jobs may use the same lane memory in turn.", NODE
    )
    domain_quantum_ns: int = key(
        "DomainQuantum",
        Time(),
        SECOND_NS,
        "Minimum time that a lane stays with one domain. Hand-overs between domains copy memory.",
        NODE,
    )
    unmap_timeout_ns: int = key(
        "UnmapTimeout",
        Time(10 * MILLISECOND_NS, HOUR_NS),
        5 * SECOND_NS,
        "A session that has not unmapped a lane after this time is ended, so that another domain can use the memory.",
        NODE,
    )
    release_timeout_ns: int = key(
        "ReleaseTimeout",
        Time(SECOND_NS, HOUR_NS),
        30 * SECOND_NS,
        "How long salusd waits for the memory of a finished job to become free.",
        NODE,
    )
    stray_access: StrayAccess = key(
        "StrayAccess",
        Choice(StrayAccess),
        StrayAccess.OFF,
        "trap detects access to a lane that another session holds, at some cost in speed.",
        NODE,
    )


@dataclass(frozen=True)
class Order:
    """Order and fairness"""

    policy: str = key(
        "Policy",
        Choice(tuple(POLICIES)),
        POLICY_DEFAULT,
        "The policy that decides which session runs the next iteration.",
        NODE,
        PARTITION,
        DEVICE,
    )
    overtakes_max: int = key(
        "MaxOvertakes", Count(1), 1000, "How often a waiting session may be overtaken before it runs next.", NODE
    )
    fair_slack_ns: int = key(
        "FairSlack",
        Time(0, HOUR_NS),
        0,
        "Under fair, how far a session may run ahead of others. More slack means fewer hand-overs.",
        NODE,
    )
    decay_half_life_ns: int = key(
        "DecayHalfLife",
        Time(),
        0,
        "Under fair, the time after which past service counts half. 0: it always counts in full.",
        NODE,
    )
    weight_high: int = key("WeightHigh", Count(1, 1_000_000), 4, "Weight of class high under fair.", NODE)
    weight_normal: int = key("WeightNormal", Count(1, 1_000_000), 2, "Weight of class normal under fair.", NODE)
    weight_best_effort: int = key(
        "WeightBestEffort", Count(1, 1_000_000), 1, "Weight of class best-effort under fair.", NODE
    )
    default_class: JobClass = key(
        "DefaultClass", Choice(JobClass), JobClass.NORMAL, "Class of a job that requests none.", PARTITION
    )
    high_qos: tuple[str, ...] = key("HighQOS", Names(), (), "QOS whose jobs may request class high.")
    high_accounts: tuple[str, ...] = key("HighAccounts", Names(), (), "Accounts whose jobs may request class high.")
    high_partitions: tuple[str, ...] = key(
        "HighPartitions", Names(), (), "Partitions whose jobs may request class high."
    )
    extend_time: bool = key(
        "ExtendTime",
        YesNo(),
        False,
        "Extend a job's time limit by the time that it spent waiting for a lane.",
        PARTITION,
    )
    extend_time_max_ns: int = key(
        "ExtendTimeMax", Time(), DAY_NS, "Upper limit of the time that ExtendTime adds to one job.", PARTITION
    )


@dataclass(frozen=True)
class Gate:
    """Sessions and the gate"""

    idle_release_ns: int = key(
        "IdleRelease",
        Time(MILLISECOND_NS),
        200 * MILLISECOND_NS,
        "A session that is idle for this long gives its lane to a waiting session.",
        NODE,
    )
    on_hang: OnHang = key(
        "OnHang",
        Choice(OnHang),
        OnHang.WARN,
        "What to do with a session that holds a lane and makes no progress: warn, or warn and kill.",
        NODE,
    )
    hang_timeout_ns: int = key(
        "HangTimeout",
        Time(SECOND_NS),
        MINUTE_NS,
        "A session that ignores a revoke for this long is hung. Must be longer than any iteration.",
        NODE,
    )
    on_daemon_loss: DaemonLoss = key(
        "OnDaemonLoss",
        Choice(DaemonLoss),
        DaemonLoss.RUN,
        "What a task does while salusd does not answer: run without the gate, or refuse to start (plugstack.conf).",
    )


@dataclass(frozen=True)
class Admission:
    """Admission at submit"""

    unknown_job: UnknownJob = key(
        "UnknownJob",
        Choice(UnknownJob),
        UnknownJob.EXCLUSIVE,
        "A job without a profile gets a whole device, gets its --salus-mem, is refused, or is measured and requeued.",
        PARTITION,
    )
    probe_tasks: int = key(
        "ProbeTasks",
        Count(0, 10_000),
        0,
        "Tasks of an array without a profile that run until one of them is measured. 0: all.",
        PARTITION,
    )
    on_admission_loss: AdmissionLoss = key(
        "OnAdmissionLoss",
        Choice(AdmissionLoss),
        AdmissionLoss.EXCLUSIVE,
        "What a job gets that is submitted while salus-admitd does not answer: a whole device, or a refusal.",
    )
    socket: str = key(
        "AdmissionSocket",
        FilePath(is_socket=True),
        "/run/salus/admitd.sock",
        "Socket of salus-admitd on the host of slurmctld, used by job_submit.lua.",
        is_live=False,
    )
    host: str = key(
        "AdmissionHost",
        Text(is_optional=False),
        "localhost",
        "Host name or address of salus-admitd, for commands on login nodes.",
    )
    port: int = key(
        "AdmissionPort",
        port(),
        6827,
        "TCP port of salus-admitd. Clients authenticate with munge. 0: no port.",
        is_live=False,
    )
    timeout_ns: int = key(
        "AdmissionTimeout",
        Time(10 * MILLISECOND_NS, 5 * SECOND_NS),
        500 * MILLISECOND_NS,
        "How long slurmctld waits for an answer of salus-admitd.",
    )
    timeouts_max: int = key(
        "AdmissionTimeouts", Count(1, 1000), 3, "After this many timeouts in a row, job_submit.lua pauses its requests."
    )
    pause_ns: int = key(
        "AdmissionPause",
        Time(SECOND_NS, HOUR_NS),
        10 * SECOND_NS,
        "How long job_submit.lua pauses after AdmissionTimeouts.",
    )
    user_requests_per_s: int = key(
        "AdmissionRate", Count(1), 50, "Queries per second that one user may send to salus-admitd."
    )
    user_submits_per_s: int = key(
        "SubmitRate", Count(1), 1000, "Submits and job changes per second that one user may make. More are refused."
    )
    credential_ttl_ns: int = key(
        "CredentialTTL", Time(SECOND_NS, HOUR_NS), MINUTE_NS, "Maximum age of a munge credential."
    )
    profile_cache_ns: int = key(
        "ProfileCache",
        Time(0, DAY_NS),
        30 * SECOND_NS,
        "Maximum age of a cached profile while the database answers.",
    )
    readmit_interval_ns: int = key(
        "ReadmitInterval",
        Time(SECOND_NS, HOUR_NS),
        5 * SECOND_NS,
        "How often pending jobs are checked for a new profile.",
    )


@dataclass(frozen=True)
class Slurm:
    """Slurm"""

    user: str = key(
        "SlurmUser",
        Text(is_optional=False),
        "slurm",
        "The SlurmUser of slurm.conf, as which job_submit.lua connects to salus-admitd.",
    )
    access: SlurmAccess = key(
        "SlurmAccess",
        Choice(SlurmAccess),
        SlurmAccess.CLI,
        "How Salus talks to Slurm: through its commands, or through pyslurm if installed.",
    )
    conf: str = key(
        "SlurmConf",
        FilePath(),
        "/etc/slurm/slurm.conf",
        "Path of slurm.conf, which salus config check --slurm compares with this file.",
    )
    bin_dir: str = key(
        "SlurmBinDir", FilePath(is_optional=True), "", "Directory of Slurm's commands. Empty: they are found in PATH."
    )
    timeout_ns: int = key(
        "SlurmTimeout", Time(SECOND_NS, HOUR_NS), 10 * SECOND_NS, "A Slurm command that takes longer is cancelled."
    )
    reconcile_interval_ns: int = key(
        "ReconcileInterval",
        Time(SECOND_NS, DAY_NS),
        30 * SECOND_NS,
        "How often salusd compares its sessions with Slurm's jobs, to find missed Epilogs and suspended jobs.",
        NODE,
    )
    prolog_timeout_ns: int = key(
        "PrologTimeout",
        Time(SECOND_NS, HOUR_NS),
        MINUTE_NS,
        "How long the Prolog waits for the job's memory. The job starts after this time in any case.",
        NODE,
    )


@dataclass(frozen=True)
class Daemon:
    """salusd"""

    socket: str = key(
        "DaemonSocket",
        FilePath(is_socket=True, has_node=True),
        "/run/salus/salusd.sock",
        "Socket for jobs, the Prolog and the SPANK plugin. %n is the node name.",
        NODE,
        is_live=False,
    )
    control_socket: str = key(
        "ControlSocket",
        FilePath(is_socket=True, has_node=True),
        "/run/salus/control.sock",
        "Socket for salus status, salus top and the commands of admins.",
        NODE,
        is_live=False,
    )
    state_dir: str = key(
        "StateDir",
        FilePath(has_node=True),
        "/var/lib/salus/%n",
        "Directory of the journal and the spool. Use a local disk; only root has access.",
        NODE,
        is_live=False,
    )
    adaptor_dir: str = key(
        "AdaptorDir",
        FilePath(is_optional=True, has_node=True),
        "",
        "Directory of the files that jobs load (salus_job, libsalus). Empty: those of the installation.",
        NODE,
    )
    auto_detect: AutoDetect = key(
        "AutoDetect",
        Choice(AutoDetect),
        AutoDetect.NVML,
        "Whether salusd looks for GPUs that no DeviceName record names.",
        NODE,
        is_live=False,
    )
    local_jobs: bool = key(
        "LocalJobs",
        YesNo(),
        False,
        "Whether users may start jobs without Slurm through salus run, for workstations.",
        NODE,
    )
    share_mode: ShareMode = key(
        "ShareMode",
        Choice(ShareMode),
        ShareMode.TIMESLICE,
        "How lanes share the processors of a GPU. With mps the lanes of one user run at the same time.",
        NODE,
        DEVICE,
    )
    mps_thread_percent: int = key(
        "MpsThreads", Percent(100), 100, "Share of the processors that one MPS client may use.", NODE
    )
    mps_pinned_bytes: int = key(
        "MpsPinnedMemory", Size(), 0, "Device memory that one MPS client may pin. 0: no limit.", NODE
    )
    best_effort_launches_max: int = key(
        "BestEffortLaunches",
        Count(1, 1024),
        1,
        "Kernels that a best-effort session may have in flight while class high is active.",
        NODE,
        DEVICE,
    )
    user_sessions_max: int = key(
        "UserSessions", Count(1, 100_000), 256, "Sessions that one user may have on a node.", NODE
    )
    user_requests_per_s: int = key(
        "UserRequests", Count(1), 1000, "Requests per second that one user may send to salusd.", NODE
    )
    hello_timeout_ns: int = key(
        "HelloTimeout",
        Time(100 * MILLISECOND_NS, HOUR_NS),
        5 * SECOND_NS,
        "A connection that sends nothing for this long is closed.",
        NODE,
    )
    journal_bytes_max: int = key(
        "JournalSize", Size(MIB, 16 * GIB), 64 * MIB, "Size at which the journal is rotated.", NODE
    )
    journal_files_max: int = key(
        "JournalFiles", Count(1, 1000), 4, "Number of old journals that are kept, for salus simulate --replay.", NODE
    )


@dataclass(frozen=True)
class Readings:
    """Readings, metrics and logs"""

    interval_ns: int = key(
        "SampleInterval",
        Time(100 * MILLISECOND_NS, HOUR_NS),
        5 * SECOND_NS,
        "How often salusd reads the devices' counters.",
        NODE,
    )
    timeout_ns: int = key(
        "ReadingTimeout",
        Time(100 * MILLISECOND_NS, HOUR_NS),
        2 * SECOND_NS,
        "A device whose NVML calls take longer than this is marked as not answering.",
        NODE,
    )
    xid_ignored: tuple[int, ...] = key(
        "XidIgnore",
        Numbers(65_535),
        (13, 31, 43, 45, 68, 69, 94, 109),
        "Xid errors that a job causes by itself. Any other Xid error closes the device.",
        NODE,
    )
    metrics_address: str = key(
        "MetricsAddress",
        Text(is_optional=False),
        "127.0.0.1",
        "Address for metrics. Everybody who can reach it can read them.",
        NODE,
        is_live=False,
    )
    metrics_port: int = key("MetricsPort", port(), 9827, "Port of salusd for Prometheus. 0: none.", NODE, is_live=False)
    admission_metrics_port: int = key(
        "AdmissionMetricsPort", port(), 9828, "Port of salus-admitd for Prometheus. 0: none.", is_live=False
    )
    log_file: str = key(
        "LogFile",
        FilePath(is_optional=True, has_node=True),
        "",
        "Log file. Empty: standard error, which systemd collects.",
        NODE,
        is_live=False,
    )
    log_level: LogLevel = key("LogLevel", Choice(LogLevel), LogLevel.INFO, "Least severe level that is logged.", NODE)
    log_format: LogFormat = key(
        "LogFormat", Choice(LogFormat), LogFormat.KEYVALUE, "Format of log lines. Use json for log collectors.", NODE
    )


@dataclass(frozen=True)
class Storage:
    """Database and spool"""

    url: str = key(
        "StorageUrl",
        Text(is_optional=False),
        "sqlite:////var/lib/salus/salus.db",
        "Database: SQLite on one host, postgresql+psycopg:// or mysql+pymysql:// for a cluster. Put no password here.",
        is_live=False,
    )
    pass_file: str = key(
        "StoragePassFile",
        FilePath(is_optional=True),
        "",
        "File with the database password: one line, mode 0600.",
        is_live=False,
    )
    timeout_ns: int = key(
        "StorageTimeout",
        Time(100 * MILLISECOND_NS, HOUR_NS),
        5 * SECOND_NS,
        "A database statement that takes longer is retried.",
    )
    spool_bytes_max: int = key(
        "SpoolSize",
        Size(MIB, 1024 * GIB),
        256 * MIB,
        "Disk space for records while the database does not answer.",
        NODE,
    )
    batch_interval_ns: int = key(
        "LedgerInterval",
        Time(100 * MILLISECOND_NS, HOUR_NS),
        5 * SECOND_NS,
        "How long a record may wait so that records are written in batches.",
        NODE,
    )
    usage_interval_ns: int = key(
        "UsageInterval", Time(SECOND_NS, DAY_NS), 5 * MINUTE_NS, "Time that one row of usage covers.", NODE
    )
    roll_up_after_ns: int = key("RollUpAfter", Time(), 30 * DAY_NS, "Usage older than this is summed by day. 0: never.")
    purge_after_ns: int = key("PurgeAfter", Time(), 0, "Records older than this are deleted. 0: never.")
    retention_interval_ns: int = key(
        "RetentionInterval",
        Time(),
        DAY_NS,
        "How often salus-admitd rolls up and purges. 0: never.",
        is_live=False,
    )
    accounting_interval_ns: int = key(
        "AccountingInterval",
        Time(),
        MINUTE_NS,
        "How often salus-admitd imports job times from Slurm and writes job summaries. 0: never.",
        is_live=False,
    )
    is_summary_written: bool = key(
        "JobSummary", YesNo(), True, "Whether a summary is added to the AdminComment of a finished job.", PARTITION
    )


@dataclass(frozen=True)
class Settings:
    """The values of all keys for the cluster, a node, a partition or a device."""

    cluster: Cluster = field(default_factory=Cluster)
    lanes: Lanes = field(default_factory=Lanes)
    order: Order = field(default_factory=Order)
    gate: Gate = field(default_factory=Gate)
    admission: Admission = field(default_factory=Admission)
    slurm: Slurm = field(default_factory=Slurm)
    daemon: Daemon = field(default_factory=Daemon)
    readings: Readings = field(default_factory=Readings)
    storage: Storage = field(default_factory=Storage)
