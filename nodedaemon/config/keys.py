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
    DAY_NS,
    GIB,
    GRANULARITY_BYTES,
    HOUR_NS,
    MIB,
    MILLISECOND_NS,
    MINUTE_NS,
    POLICY_DEFAULT,
    SECOND_NS,
    FaultAction,
    JobClass,
    LaneSharing,
)

NODE, PARTITION, DEVICE = Scope.NODE, Scope.PARTITION, Scope.DEVICE


@dataclass(frozen=True)
class Cluster:
    """Cluster and permissions"""

    name: str = key("ClusterName", Text(is_optional=False), "cluster", is_live=False).doc(
        "The ClusterName of slurm.conf. Accounting records are stored under it."
    )
    is_single_host: bool = key("SingleHost", YesNo(), False).doc(
        "All daemons run on this machine (workstation, demo), so several nodes may share one SQLite file."
    )
    admins: tuple[str, ...] = key("Admins", Names(), ("root",)).doc(
        "Users who may drain devices, reload the configuration and change policies."
    )
    operators: tuple[str, ...] = key("Operators", Names(), ()).doc(
        "Users who may see the jobs and profiles of all users."
    )


@dataclass(frozen=True)
class Lanes:
    """Memory and lanes"""

    lane_reserve_bytes: int | None = key("LaneReserve", SizeOrAuto(GRANULARITY_BYTES), None, NODE, DEVICE).doc(
        "Device memory that is reserved for lanes (R). The rest becomes shards. auto: a quarter of the device."
    )
    shard_unit_bytes: int = key("ShardUnit", Size(1 * MIB, GIB), 16 * MIB).doc(
        "Memory that one shard represents. It must match gres.conf on all nodes."
    )
    lanes_max: int = key("MaxLanes", Count(1, 64), 4, NODE, DEVICE).doc(
        "Lanes that may be open on a device at the same time. Busy lanes share its processors."
    )
    headroom_percent: int = key("Headroom", Percent(), 10, PARTITION).doc(
        "Percentage that is added to measured memory, because runs of the same job differ a little."
    )
    on_overrun: FaultAction = key("OnOverrun", Choice(FaultAction), FaultAction.WARN, NODE).doc(
        "What to do with a job that exceeds its admitted memory when no more is free: warn or kill."
    )
    sharing: LaneSharing = key("LaneSharing", Choice(LaneSharing), LaneSharing.USER, NODE).doc(
        "Whose jobs may use the same lane memory in turn. account needs AccountingStorageEnforce=associations in "
        "slurm.conf."
    )
    domain_quantum_ns: int = key("DomainQuantum", Time(), SECOND_NS, NODE).doc(
        "Minimum time that the memory of a lane stays with one domain. Passing it to another domain copies memory."
    )
    unmap_timeout_ns: int = key("UnmapTimeout", Time(10 * MILLISECOND_NS, HOUR_NS), 5 * SECOND_NS, NODE).doc(
        "A process that must give up a lane is ended if it still holds the lane after this time."
    )
    release_timeout_ns: int = key("ReleaseTimeout", Time(SECOND_NS, HOUR_NS), 30 * SECOND_NS, NODE).doc(
        "How long an Epilog waits for the memory of its job to become free. Values above 1.5 s have no effect."
    )
    stray_access: StrayAccess = key("StrayAccess", Choice(StrayAccess), StrayAccess.OFF, NODE).doc(
        "trap detects access to a lane that another session holds, at some cost in speed."
    )


@dataclass(frozen=True)
class Order:
    """Order and fairness"""

    policy: str = key("Policy", Choice(tuple(POLICIES)), POLICY_DEFAULT, NODE, PARTITION, DEVICE).doc(
        "The policy that decides which session runs the next iteration."
    )
    overtakes_max: int = key("MaxOvertakes", Count(1), 1000, NODE).doc(
        "How many times a waiting session may be overtaken before it runs next."
    )
    fair_slack_ns: int = key("FairSlack", Time(0, HOUR_NS), 0, NODE).doc(
        "Under fair and priority, how far a session may run ahead of others. More slack means fewer hand-overs."
    )
    decay_half_life_ns: int = key("DecayHalfLife", Time(), 0, NODE).doc(
        "Under fair and priority, the time after which past service counts only half. 0: it always counts in full."
    )
    weight_high: int = key("WeightHigh", Count(1, 1_000_000), 4, NODE).doc("Weight of class high under fair.")
    weight_normal: int = key("WeightNormal", Count(1, 1_000_000), 2, NODE).doc("Weight of class normal under fair.")
    weight_best_effort: int = key("WeightBestEffort", Count(1, 1_000_000), 1, NODE).doc(
        "Weight of class best-effort under fair."
    )
    default_class: JobClass = key("DefaultClass", Choice(JobClass), JobClass.NORMAL, PARTITION).doc(
        "Class of a job that requests none."
    )
    high_qos: tuple[str, ...] = key("HighQOS", Names(), ()).doc(
        "QOS whose jobs may request class high. Needs AccountingStorageEnforce=qos in slurm.conf."
    )
    high_accounts: tuple[str, ...] = key("HighAccounts", Names(), ()).doc(
        "Accounts whose jobs may request class high. Needs AccountingStorageEnforce=associations in slurm.conf."
    )
    high_partitions: tuple[str, ...] = key("HighPartitions", Names(), ()).doc(
        "Partitions whose jobs may request class high."
    )
    extend_time: bool = key("ExtendTime", YesNo(), False, PARTITION).doc(
        "Extend a job's time limit by the time that it spent waiting for a lane."
    )
    extend_time_max_ns: int = key("ExtendTimeMax", Time(), DAY_NS, PARTITION).doc(
        "Upper limit of the time that ExtendTime adds to one job."
    )


@dataclass(frozen=True)
class Gate:
    """Sessions and the gate"""

    idle_release_ns: int = key("IdleRelease", Time(MILLISECOND_NS), 200 * MILLISECOND_NS, NODE).doc(
        "A session that is idle for this long gives its lane to a waiting session."
    )
    on_hang: FaultAction = key("OnHang", Choice(FaultAction), FaultAction.WARN, NODE).doc(
        "What to do with a hung session: warn or kill. It is killed in any case if a placed job needs its memory."
    )
    hang_timeout_ns: int = key("HangTimeout", Time(SECOND_NS), MINUTE_NS, NODE).doc(
        "A session hangs if it reaches no boundary this long after a revoke. Must be longer than any iteration."
    )
    on_daemon_loss: DaemonLoss = key("OnDaemonLoss", Choice(DaemonLoss), DaemonLoss.RUN).doc(
        "What a task does if salusd does not answer: run without taking turns, or fail. Must match on_loss in "
        "plugstack.conf."
    )


@dataclass(frozen=True)
class Admission:
    """Admission at submit time"""

    unknown_job: UnknownJob = key("UnknownJob", Choice(UnknownJob), UnknownJob.EXCLUSIVE, PARTITION).doc(
        "A job without a profile: exclusive or requeue (a whole device), declared (it needs --salus-mem), refuse."
    )
    probe_tasks: int = key("ProbeTasks", Count(0, 10_000), 0, PARTITION).doc(
        "How many tasks of an array without a profile may run until one of them has been measured. 0: all."
    )
    on_admission_loss: AdmissionLoss = key("OnAdmissionLoss", Choice(AdmissionLoss), AdmissionLoss.EXCLUSIVE).doc(
        "A job that is submitted while salus-admitd does not answer gets a whole device, or is refused."
    )
    socket: str = key("AdmissionSocket", FilePath(is_socket=True), "/run/salus/admitd.sock", is_live=False).doc(
        "Socket of salus-admitd on the host of slurmctld, used by job_submit.lua."
    )
    host: str = key("AdmissionHost", Text(is_optional=False), "localhost").doc(
        "Host name or address on which salus-admitd listens, and to which commands on login nodes connect."
    )
    port: int = key("AdmissionPort", port(), 6827, is_live=False).doc(
        "TCP port of salus-admitd. Clients authenticate with munge. 0: no port."
    )
    timeout_ns: int = key("AdmissionTimeout", Time(10 * MILLISECOND_NS, 5 * SECOND_NS), 500 * MILLISECOND_NS).doc(
        "How long slurmctld waits for an answer from salus-admitd."
    )
    timeouts_max: int = key("AdmissionTimeouts", Count(1, 1000), 3).doc(
        "After this many timeouts in a row, job_submit.lua stops sending requests for AdmissionPause."
    )
    pause_ns: int = key("AdmissionPause", Time(SECOND_NS, HOUR_NS), 10 * SECOND_NS).doc(
        "Length of the pause after AdmissionTimeouts timeouts."
    )
    user_requests_per_s: int = key("AdmissionRate", Count(1), 50).doc(
        "Queries per second that one user may send to salus-admitd."
    )
    user_submits_per_s: int = key("SubmitRate", Count(1), 1000).doc(
        "Submissions and job changes per second that one user may make. More are refused."
    )
    credential_ttl_ns: int = key("CredentialTTL", Time(SECOND_NS, HOUR_NS), MINUTE_NS).doc(
        "Maximum age of a munge credential."
    )
    profile_cache_ns: int = key("ProfileCache", Time(0, DAY_NS), 30 * SECOND_NS).doc(
        "Maximum age of a cached profile while the database answers."
    )
    readmit_interval_ns: int = key("ReadmitInterval", Time(SECOND_NS, HOUR_NS), 5 * SECOND_NS).doc(
        "How often pending jobs are checked for a new profile."
    )


@dataclass(frozen=True)
class Slurm:
    """Slurm"""

    user: str = key("SlurmUser", Text(is_optional=False), "slurm", is_live=False).doc(
        "The SlurmUser of slurm.conf. Only this user and root can connect to AdmissionSocket and decode credentials."
    )
    access: SlurmAccess = key("SlurmAccess", Choice(SlurmAccess), SlurmAccess.CLI).doc(
        "How Salus talks to Slurm: through its commands, or through pyslurm if installed."
    )
    conf: str = key("SlurmConf", FilePath(), "/etc/slurm/slurm.conf").doc(
        "Path of slurm.conf, which salus config check --slurm compares with this file."
    )
    bin_dir: str = key("SlurmBinDir", FilePath(is_optional=True), "").doc(
        "Directory of Slurm's commands. Empty: they are found in PATH."
    )
    timeout_ns: int = key("SlurmTimeout", Time(SECOND_NS, HOUR_NS), 10 * SECOND_NS).doc(
        "A Slurm command that takes longer is cancelled."
    )
    reconcile_interval_ns: int = key("ReconcileInterval", Time(SECOND_NS, DAY_NS), 30 * SECOND_NS, NODE).doc(
        "How often salusd compares its sessions with Slurm's jobs, to find missed Epilogs and suspended jobs."
    )
    prolog_timeout_ns: int = key("PrologTimeout", Time(SECOND_NS, HOUR_NS), MINUTE_NS, NODE).doc(
        "How long the Prolog waits for the job's memory, at most 55 s. The job starts after this time in any case."
    )


@dataclass(frozen=True)
class Daemon:
    """salusd"""

    socket: str = key(
        "DaemonSocket", FilePath(is_socket=True, has_node=True), "/run/salus/salusd.sock", NODE, is_live=False
    ).doc("Socket for jobs, the Prolog and the SPANK plugin. %n is the node name.")
    control_socket: str = key(
        "ControlSocket", FilePath(is_socket=True, has_node=True), "/run/salus/control.sock", NODE, is_live=False
    ).doc("Socket for salus status, salus top and the commands of admins.")
    state_dir: str = key("StateDir", FilePath(has_node=True), "/var/lib/salus/%n", NODE, is_live=False).doc(
        "Directory of the journal and the spool. Use a local disk; only root has access."
    )
    adaptor_dir: str = key("AdaptorDir", FilePath(is_optional=True, has_node=True), "", NODE).doc(
        "Directory of the files that jobs load (salus_job, libsalus). Empty: those of the installation."
    )
    auto_detect: AutoDetect = key("AutoDetect", Choice(AutoDetect), AutoDetect.NVML, NODE, is_live=False).doc(
        "Whether salusd uses NVML to find GPUs that no DeviceName record names."
    )
    local_jobs: bool = key("LocalJobs", YesNo(), False, NODE).doc(
        "Whether users may start jobs without Slurm, with salus run. For workstations."
    )
    share_mode: ShareMode = key("ShareMode", Choice(ShareMode), ShareMode.TIMESLICE, NODE, DEVICE).doc(
        "How lanes share the processors of a GPU. With mps the lanes of one user run at the same time."
    )
    mps_thread_percent: int = key("MpsThreads", Percent(100), 100, NODE).doc(
        "Share of the processors that one MPS client may use."
    )
    mps_pinned_bytes: int = key("MpsPinnedMemory", Size(), 0, NODE).doc(
        "Device memory that one MPS client may pin. 0: no limit."
    )
    best_effort_launches_max: int = key("BestEffortLaunches", Count(1, 1024), 1, NODE, DEVICE).doc(
        "Kernels that a best-effort session may have in flight while a session of class high is on the device."
    )
    user_sessions_max: int = key("UserSessions", Count(1, 100_000), 256, NODE).doc(
        "Sessions that one user may have on a node."
    )
    user_requests_per_s: int = key("UserRequests", Count(1), 1000, NODE).doc(
        "Requests per second that one user may send to salusd."
    )
    hello_timeout_ns: int = key("HelloTimeout", Time(100 * MILLISECOND_NS, HOUR_NS), 5 * SECOND_NS, NODE).doc(
        "A new connection that sends nothing for this long is closed."
    )
    journal_bytes_max: int = key("JournalSize", Size(MIB, 16 * GIB), 64 * MIB, NODE, is_live=False).doc(
        "Size at which the journal is rotated."
    )
    journal_files_max: int = key("JournalFiles", Count(1, 1000), 4, NODE, is_live=False).doc(
        "Number of journal files that are kept, including the current one. salus simulate --replay reads them."
    )


@dataclass(frozen=True)
class Readings:
    """Readings, metrics and logs"""

    interval_ns: int = key("SampleInterval", Time(100 * MILLISECOND_NS, HOUR_NS), 5 * SECOND_NS, NODE).doc(
        "How often salusd reads the devices' counters."
    )
    timeout_ns: int = key("ReadingTimeout", Time(100 * MILLISECOND_NS, HOUR_NS), 2 * SECOND_NS, NODE).doc(
        "A device whose NVML calls take longer than this is reported as lost."
    )
    xid_ignored: tuple[int, ...] = key("XidIgnore", Numbers(65_535), (13, 31, 43, 45, 68, 69, 94, 109), NODE).doc(
        "Xid errors that affect only the job that causes them. After any other Xid error, the device counts as lost."
    )
    metrics_address: str = key("MetricsAddress", Text(is_optional=False), "127.0.0.1", NODE, is_live=False).doc(
        "Address on which metrics are served. Anyone who can reach it can read them."
    )
    metrics_port: int = key("MetricsPort", port(), 9827, NODE, is_live=False).doc(
        "Port of salusd for Prometheus. 0: none."
    )
    admission_metrics_port: int = key("AdmissionMetricsPort", port(), 9828, is_live=False).doc(
        "Port of salus-admitd for Prometheus. 0: none."
    )
    log_file: str = key("LogFile", FilePath(is_optional=True, has_node=True), "", NODE, is_live=False).doc(
        "Log file. Empty: standard error, which systemd collects."
    )
    log_level: LogLevel = key("LogLevel", Choice(LogLevel), LogLevel.INFO, NODE, is_live=False).doc(
        "Lowest level that is logged."
    )
    log_format: LogFormat = key("LogFormat", Choice(LogFormat), LogFormat.KEYVALUE, NODE, is_live=False).doc(
        "Format of log lines. Use json for log collectors."
    )


@dataclass(frozen=True)
class Storage:
    """Database and spool"""

    url: str = key("StorageUrl", Text(is_optional=False), "sqlite:////var/lib/salus/salus.db", is_live=False).doc(
        "Database: sqlite:// on one host, postgresql:// or mariadb:// for a cluster. Put no password here."
    )
    pass_file: str = key("StoragePassFile", FilePath(is_optional=True), "", is_live=False).doc(
        "File with the database password: one line, mode 0600."
    )
    timeout_ns: int = key("StorageTimeout", Time(100 * MILLISECOND_NS, HOUR_NS), 5 * SECOND_NS).doc(
        "If the database takes longer to answer, it counts as down, and records stay in the spool."
    )
    spool_bytes_max: int = key("SpoolSize", Size(MIB, 1024 * GIB), 256 * MIB, NODE, is_live=False).doc(
        "Disk space for records while the database does not answer."
    )
    batch_interval_ns: int = key("LedgerInterval", Time(100 * MILLISECOND_NS, HOUR_NS), 5 * SECOND_NS, NODE).doc(
        "How long a record may wait to be written together with others."
    )
    usage_interval_ns: int = key("UsageInterval", Time(SECOND_NS, DAY_NS), 5 * MINUTE_NS, NODE).doc(
        "Time that one row of usage covers."
    )
    roll_up_after_ns: int = key("RollUpAfter", Time(), 30 * DAY_NS).doc(
        "Usage older than this is summed by day. 0: never."
    )
    purge_after_ns: int = key("PurgeAfter", Time(), 0).doc(
        "Jobs that ended longer ago than this are deleted, with all their records. 0: never."
    )
    retention_interval_ns: int = key("RetentionInterval", Time(), DAY_NS, is_live=False).doc(
        "How often salus-admitd rolls up and purges old records. 0: never."
    )
    accounting_interval_ns: int = key("AccountingInterval", Time(), MINUTE_NS, is_live=False).doc(
        "How often salus-admitd imports job times from Slurm and writes job summaries. 0: never."
    )
    is_summary_written: bool = key("JobSummary", YesNo(), True, PARTITION).doc(
        "Whether a summary is added to the AdminComment of a finished job."
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
