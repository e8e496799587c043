"""The names that keys choose among. Each member says what it does; the manual prints them."""

from enum import StrEnum


class ShareMode(StrEnum):
    """How lanes that run at once share a CUDA device's processors."""

    TIMESLICE = "timeslice"
    MPS = "mps"


class StrayAccess(StrEnum):
    """Whether a touch of a lane that is lent to somebody else is caught."""

    OFF = "off"
    TRAP = "trap"


class UnknownJob(StrEnum):
    """What a job without a profile gets."""

    EXCLUSIVE = "exclusive"
    DECLARED = "declared"
    REFUSE = "refuse"
    REQUEUE = "requeue"


class AdmissionLoss(StrEnum):
    """What a submit gets while salus-admitd does not answer."""

    EXCLUSIVE = "exclusive"
    REFUSE = "refuse"


class DaemonLoss(StrEnum):
    """What a task gets that starts while salusd does not answer."""

    RUN = "run"
    REFUSE = "refuse"


class DeviceType(StrEnum):
    """What stands behind a device."""

    CUDA = "cuda"
    HOST = "host"


class AutoDetect(StrEnum):
    """Whether salusd looks for devices that no DeviceName record names."""

    NVML = "nvml"
    OFF = "off"


class SlurmAccess(StrEnum):
    """How Slurm is asked and told."""

    CLI = "cli"
    PYSLURM = "pyslurm"


class LogLevel(StrEnum):
    """The least important line that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How a line of the log is written."""

    KEYVALUE = "keyvalue"
    JSON = "json"
