"""The enumerations among whose members a key chooses."""

from enum import StrEnum


class ShareMode(StrEnum):
    """How lanes that run at the same time share the processors of a GPU."""

    TIMESLICE = "timeslice"
    MPS = "mps"


class StrayAccess(StrEnum):
    """Whether salusd detects access to a lane that another session holds."""

    OFF = "off"
    TRAP = "trap"


class UnknownJob(StrEnum):
    """What a job without a profile gets."""

    EXCLUSIVE = "exclusive"
    DECLARED = "declared"
    REFUSE = "refuse"
    REQUEUE = "requeue"


class AdmissionLoss(StrEnum):
    """What a job gets that is submitted while salus-admitd does not answer."""

    EXCLUSIVE = "exclusive"
    REFUSE = "refuse"


class DaemonLoss(StrEnum):
    """What a task does that starts while salusd does not answer."""

    RUN = "run"
    REFUSE = "refuse"


class DeviceType(StrEnum):
    """A GPU, or a slice of the node's memory and cores."""

    CUDA = "cuda"
    HOST = "host"


class AutoDetect(StrEnum):
    """Whether salusd looks for devices that no DeviceName record names."""

    NVML = "nvml"
    OFF = "off"


class SlurmAccess(StrEnum):
    """How Salus talks to Slurm."""

    CLI = "cli"
    PYSLURM = "pyslurm"


class LogLevel(StrEnum):
    """The least severe level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """The format of log lines."""

    KEYVALUE = "keyvalue"
    JSON = "json"
