"""Every key of salus.conf with its default and one line of why, grouped by what it is about.

etc/salus.conf and docs/man/salus.conf.md are generated from this module (`make man`); tests compare them.
An attribute ends with its unit; 0 switches a bound or a timer off where the line says so.
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
    """The cluster and who may do what"""

    name: str = key(
        "ClusterName", Text(is_optional=False), "cluster", "Same as in slurm.conf; keys the records.", is_live=False
    )
    is_single_host: bool = key(
        "SingleHost",
        YesNo(),
        False,
        "All daemons run on this machine (workstation, demo), so several nodes may share one SQLite file.",
    )
    admins: tuple[str, ...] = key("Admins", Names(), ("root",), "Users who may drain, reload and change policies.")
    operators: tuple[str, ...] = key("Operators", Names(), (), "Users who see everybody's jobs and profiles.")


@dataclass(frozen=True)
class Lanes:
    """Memory and lanes"""

    lane_reserve_bytes: int | None = key(
        "LaneReserve",
        SizeOrAuto(GRANULARITY_BYTES),
        None,
        "R: bytes of a device for lanes, the rest becomes shards; auto: what gres.conf leaves of it.",
        NODE,
        DEVICE,
    )
    shard_unit_bytes: int = key(
        "ShardUnit", Size(1 * MIB, GIB), 16 * MIB, "Memory behind one shard; one for the cluster, as in gres.conf."
    )
    lanes_max: int = key("MaxLanes", Count(1, 64), 4, "Lanes open at once; more of them share its speed.", NODE, DEVICE)
    headroom_percent: int = key(
        "Headroom", Percent(), 10, "Added to measured memory, for runs that differ a little.", PARTITION
    )
    on_overrun: OnOverrun = key(
        "OnOverrun",
        Choice(OnOverrun),
        OnOverrun.WARN,
        "A job beyond its profile and headroom: warn it or end it.",
        NODE,
    )
    sharing: LaneSharing = key(
        "LaneSharing", Choice(LaneSharing), LaneSharing.USER, "Who may use the same lane memory in turn.", NODE
    )
    domain_quantum_ns: int = key(
        "DomainQuantum", Time(), SECOND_NS, "Least time between hand-overs across domains, which copy memory.", NODE
    )
    unmap_timeout_ns: int = key(
        "UnmapTimeout",
        Time(10 * MILLISECOND_NS, HOUR_NS),
        5 * SECOND_NS,
        "A session that has not let go of a lane by then is ended, so that the next domain gets it.",
        NODE,
    )
    release_timeout_ns: int = key(
        "ReleaseTimeout", Time(SECOND_NS, HOUR_NS), 30 * SECOND_NS, "How long a finished job's memory may linger.", NODE
    )
    stray_access: StrayAccess = key(
        "StrayAccess", Choice(StrayAccess), StrayAccess.OFF, "trap catches touches of a lent lane, at a cost.", NODE
    )


@dataclass(frozen=True)
class Order:
    """Order and fairness"""

    policy: str = key(
        "Policy", Choice(tuple(POLICIES)), POLICY_DEFAULT, "Who runs the next iteration.", NODE, PARTITION, DEVICE
    )
    overtakes_max: int = key("MaxOvertakes", Count(1), 1000, "No waiter is overtaken more often in its class.", NODE)
    fair_slack_ns: int = key(
        "FairSlack",
        Time(0, HOUR_NS),
        0,
        "fair keeps a lane with its holder for so much longer: fewer hand-overs.",
        NODE,
    )
    decay_half_life_ns: int = key(
        "DecayHalfLife", Time(), 0, "After this half of the service had still counts under fair; 0: all of it.", NODE
    )
    weight_high: int = key("WeightHigh", Count(1, 1_000_000), 4, "Share of class high under fair.", NODE)
    weight_normal: int = key("WeightNormal", Count(1, 1_000_000), 2, "Share of class normal under fair.", NODE)
    weight_best_effort: int = key(
        "WeightBestEffort", Count(1, 1_000_000), 1, "Share of class best-effort under fair.", NODE
    )
    default_class: JobClass = key(
        "DefaultClass", Choice(JobClass), JobClass.NORMAL, "Class of a job that asks for none.", PARTITION
    )
    high_qos: tuple[str, ...] = key("HighQOS", Names(), (), "QOS whose jobs may ask for class high.")
    high_accounts: tuple[str, ...] = key("HighAccounts", Names(), (), "Accounts whose jobs may ask for class high.")
    high_partitions: tuple[str, ...] = key("HighPartitions", Names(), (), "Partitions that allow class high.")
    extend_time: bool = key(
        "ExtendTime", YesNo(), False, "Add the time spent waiting for a lane to the job's time limit.", PARTITION
    )
    extend_time_max_ns: int = key(
        "ExtendTimeMax", Time(), DAY_NS, "At most so much is added to one job's time limit.", PARTITION
    )


@dataclass(frozen=True)
class Gate:
    """Sessions at the gate"""

    idle_release_ns: int = key(
        "IdleRelease",
        Time(MILLISECOND_NS),
        200 * MILLISECOND_NS,
        "A holder idle for so long gives its lane to those who wait; servers and notebooks hold none.",
        NODE,
    )
    on_hang: OnHang = key(
        "OnHang", Choice(OnHang), OnHang.WARN, "A holder without progress: warn, or warn and end it.", NODE
    )
    hang_timeout_ns: int = key(
        "HangTimeout", Time(SECOND_NS), MINUTE_NS, "No boundary for so long: hung. Longer than any iteration.", NODE
    )
    on_daemon_loss: DaemonLoss = key(
        "OnDaemonLoss",
        Choice(DaemonLoss),
        DaemonLoss.RUN,
        "A task without salusd: run ungated or refuse (plugstack.conf).",
    )


@dataclass(frozen=True)
class Admission:
    """Admission at submit"""

    unknown_job: UnknownJob = key(
        "UnknownJob",
        Choice(UnknownJob),
        UnknownJob.EXCLUSIVE,
        "A job never measured: whole device, its own --salus-mem, refused, or measured and requeued.",
        PARTITION,
    )
    probe_tasks: int = key(
        "ProbeTasks",
        Count(0, 10_000),
        0,
        "Tasks of an unknown array that run until one is measured; 0: all.",
        PARTITION,
    )
    on_admission_loss: AdmissionLoss = key(
        "OnAdmissionLoss",
        Choice(AdmissionLoss),
        AdmissionLoss.EXCLUSIVE,
        "A submit while salus-admitd is away: whole device or refuse.",
    )
    socket: str = key(
        "AdmissionSocket",
        FilePath(is_socket=True),
        "/run/salus/admitd.sock",
        "Where job_submit.lua asks, beside slurmctld.",
        is_live=False,
    )
    host: str = key(
        "AdmissionHost",
        Text(is_optional=False),
        "localhost",
        "Name or address at which salus-admitd listens, and commands on login nodes ask it.",
    )
    port: int = key("AdmissionPort", port(), 6827, "Its TCP port (munge credentials); 0: none.", is_live=False)
    timeout_ns: int = key(
        "AdmissionTimeout",
        Time(10 * MILLISECOND_NS, 5 * SECOND_NS),
        500 * MILLISECOND_NS,
        "slurmctld waits no longer for an answer.",
    )
    timeouts_max: int = key(
        "AdmissionTimeouts", Count(1, 1000), 3, "After so many in a row nobody is asked for a while."
    )
    pause_ns: int = key("AdmissionPause", Time(SECOND_NS, HOUR_NS), 10 * SECOND_NS, "That while.")
    user_requests_per_s: int = key("AdmissionRate", Count(1), 50, "Questions a second that one user may ask.")
    user_submits_per_s: int = key(
        "SubmitRate", Count(1), 1000, "Submits and changes a second that one user may make; more are refused."
    )
    credential_ttl_ns: int = key(
        "CredentialTTL", Time(SECOND_NS, HOUR_NS), MINUTE_NS, "Age at which a munge credential is refused."
    )
    profile_cache_ns: int = key(
        "ProfileCache",
        Time(0, DAY_NS),
        30 * SECOND_NS,
        "How old a profile from memory may be while the database answers.",
    )
    readmit_interval_ns: int = key(
        "ReadmitInterval", Time(SECOND_NS, HOUR_NS), 5 * SECOND_NS, "How often pending jobs get a newly known charge."
    )


@dataclass(frozen=True)
class Slurm:
    """Slurm"""

    user: str = key("SlurmUser", Text(is_optional=False), "slurm", "As in slurm.conf; may submit to salus-admitd.")
    access: SlurmAccess = key(
        "SlurmAccess", Choice(SlurmAccess), SlurmAccess.CLI, "Its commands, or pyslurm if installed."
    )
    conf: str = key("SlurmConf", FilePath(), "/etc/slurm/slurm.conf", "For the cross-check with salus.conf.")
    bin_dir: str = key("SlurmBinDir", FilePath(is_optional=True), "", "Where Slurm's commands are; empty: PATH.")
    timeout_ns: int = key(
        "SlurmTimeout", Time(SECOND_NS, HOUR_NS), 10 * SECOND_NS, "A Slurm command that takes longer is given up."
    )
    reconcile_interval_ns: int = key(
        "ReconcileInterval",
        Time(SECOND_NS, DAY_NS),
        30 * SECOND_NS,
        "How often salusd compares its sessions with Slurm's, for missed Epilogs and suspended jobs.",
        NODE,
    )
    prolog_timeout_ns: int = key(
        "PrologTimeout",
        Time(SECOND_NS, HOUR_NS),
        MINUTE_NS,
        "A Prolog is answered by then, whether the job's memory is free or not.",
        NODE,
    )


@dataclass(frozen=True)
class Daemon:
    """salusd"""

    socket: str = key(
        "DaemonSocket",
        FilePath(is_socket=True, has_node=True),
        "/run/salus/salusd.sock",
        "Where jobs, Prolog and SPANK reach salusd; %n is the node.",
        NODE,
        is_live=False,
    )
    control_socket: str = key(
        "ControlSocket",
        FilePath(is_socket=True, has_node=True),
        "/run/salus/control.sock",
        "Where salus status, top and the admin's commands reach it.",
        NODE,
        is_live=False,
    )
    state_dir: str = key(
        "StateDir",
        FilePath(has_node=True),
        "/var/lib/salus/%n",
        "Journal and spool; root's alone, local disk.",
        NODE,
        is_live=False,
    )
    adaptor_dir: str = key(
        "AdaptorDir",
        FilePath(is_optional=True, has_node=True),
        "",
        "What jobs load (salus_job, libsalus); empty: from the installation.",
        NODE,
    )
    auto_detect: AutoDetect = key(
        "AutoDetect",
        Choice(AutoDetect),
        AutoDetect.NVML,
        "Look for GPUs beside the DeviceName records.",
        NODE,
        is_live=False,
    )
    local_jobs: bool = key(
        "LocalJobs", YesNo(), False, "Users may also start jobs without Slurm, by salus run: for workstations.", NODE
    )
    share_mode: ShareMode = key(
        "ShareMode", Choice(ShareMode), ShareMode.TIMESLICE, "mps lets a user's lanes run at once.", NODE, DEVICE
    )
    mps_thread_percent: int = key("MpsThreads", Percent(100), 100, "Share of the processors one MPS client gets.", NODE)
    mps_pinned_bytes: int = key(
        "MpsPinnedMemory", Size(), 0, "Device memory one MPS client may pin; 0: no limit.", NODE
    )
    best_effort_launches_max: int = key(
        "BestEffortLaunches",
        Count(1, 1024),
        1,
        "Kernels of best-effort sessions in flight while class high is active.",
        NODE,
        DEVICE,
    )
    user_sessions_max: int = key("UserSessions", Count(1, 100_000), 256, "Sessions that one user may have.", NODE)
    user_requests_per_s: int = key("UserRequests", Count(1), 1000, "Requests a second that one user may send.", NODE)
    hello_timeout_ns: int = key(
        "HelloTimeout",
        Time(100 * MILLISECOND_NS, HOUR_NS),
        5 * SECOND_NS,
        "A silent connection is closed after this.",
        NODE,
    )
    journal_bytes_max: int = key(
        "JournalSize", Size(MIB, 16 * GIB), 64 * MIB, "The journal is rotated at this size.", NODE
    )
    journal_files_max: int = key(
        "JournalFiles", Count(1, 1000), 4, "Old journals kept, for salus simulate --replay.", NODE
    )


@dataclass(frozen=True)
class Readings:
    """Readings, metrics and logs"""

    interval_ns: int = key(
        "SampleInterval", Time(100 * MILLISECOND_NS, HOUR_NS), 5 * SECOND_NS, "How often devices are read.", NODE
    )
    timeout_ns: int = key(
        "ReadingTimeout",
        Time(100 * MILLISECOND_NS, HOUR_NS),
        2 * SECOND_NS,
        "NVML silent for longer: device marked.",
        NODE,
    )
    xid_ignored: tuple[int, ...] = key(
        "XidIgnore",
        Numbers(65_535),
        (13, 31, 43, 45, 68, 69, 94, 109),
        "Xid errors that a job causes itself; others close the device.",
        NODE,
    )
    metrics_address: str = key(
        "MetricsAddress",
        Text(is_optional=False),
        "127.0.0.1",
        "Metrics are open to all who reach it.",
        NODE,
        is_live=False,
    )
    metrics_port: int = key("MetricsPort", port(), 9827, "salusd's, for Prometheus; 0: none.", NODE, is_live=False)
    admission_metrics_port: int = key(
        "AdmissionMetricsPort", port(), 9828, "salus-admitd's, for Prometheus; 0: none.", is_live=False
    )
    log_file: str = key(
        "LogFile",
        FilePath(is_optional=True, has_node=True),
        "",
        "Empty: standard error, which systemd keeps.",
        NODE,
        is_live=False,
    )
    log_level: LogLevel = key("LogLevel", Choice(LogLevel), LogLevel.INFO, "The least important line logged.", NODE)
    log_format: LogFormat = key("LogFormat", Choice(LogFormat), LogFormat.KEYVALUE, "json for log collectors.", NODE)


@dataclass(frozen=True)
class Storage:
    """Database and spool"""

    url: str = key(
        "StorageUrl",
        Text(is_optional=False),
        "sqlite:////var/lib/salus/salus.db",
        "SQLite on one host; postgresql+psycopg:// or mysql+pymysql:// for a cluster; no password here.",
        is_live=False,
    )
    pass_file: str = key(
        "StoragePassFile", FilePath(is_optional=True), "", "The password, one line, mode 0600.", is_live=False
    )
    timeout_ns: int = key(
        "StorageTimeout",
        Time(100 * MILLISECOND_NS, HOUR_NS),
        5 * SECOND_NS,
        "A statement that takes longer is retried.",
    )
    spool_bytes_max: int = key(
        "SpoolSize", Size(MIB, 1024 * GIB), 256 * MIB, "Records kept on disk while the database is away.", NODE
    )
    batch_interval_ns: int = key(
        "LedgerInterval",
        Time(100 * MILLISECOND_NS, HOUR_NS),
        5 * SECOND_NS,
        "How long a record may wait for company.",
        NODE,
    )
    usage_interval_ns: int = key(
        "UsageInterval", Time(SECOND_NS, DAY_NS), 5 * MINUTE_NS, "Width of one row of usage over time.", NODE
    )
    roll_up_after_ns: int = key("RollUpAfter", Time(), 30 * DAY_NS, "Older usage is summed by day; 0: never.")
    purge_after_ns: int = key("PurgeAfter", Time(), 0, "Older records are deleted; 0: never.")
    retention_interval_ns: int = key(
        "RetentionInterval",
        Time(),
        DAY_NS,
        "How often salus-admitd rolls up and purges; 0: never.",
        is_live=False,
    )
    accounting_interval_ns: int = key(
        "AccountingInterval",
        Time(),
        MINUTE_NS,
        "How often salus-admitd takes over Slurm's times and adds summaries; 0: never.",
        is_live=False,
    )
    is_summary_written: bool = key(
        "JobSummary", YesNo(), True, "Add a summary to a finished job's AdminComment.", PARTITION
    )


@dataclass(frozen=True)
class Settings:
    """Every key's value for one reader: the whole cluster, one node, one partition or one device."""

    cluster: Cluster = field(default_factory=Cluster)
    lanes: Lanes = field(default_factory=Lanes)
    order: Order = field(default_factory=Order)
    gate: Gate = field(default_factory=Gate)
    admission: Admission = field(default_factory=Admission)
    slurm: Slurm = field(default_factory=Slurm)
    daemon: Daemon = field(default_factory=Daemon)
    readings: Readings = field(default_factory=Readings)
    storage: Storage = field(default_factory=Storage)
