"""The enumerations from which a key chooses its value. A member's text in salus.conf is its name in lower case."""

from enum import StrEnum

#: How lanes that run at the same time share the processors of a GPU.
ShareMode = StrEnum("ShareMode", "TIMESLICE MPS")
#: Whether access to a lane that another session holds is detected.
StrayAccess = StrEnum("StrayAccess", "OFF TRAP")
#: What salus-admitd does with a job that has no profile.
UnknownJob = StrEnum("UnknownJob", "EXCLUSIVE DECLARED REFUSE REQUEUE")
#: What happens to a job that is submitted while salus-admitd does not answer.
AdmissionLoss = StrEnum("AdmissionLoss", "EXCLUSIVE REFUSE")
#: What a task does that starts while salusd does not answer.
DaemonLoss = StrEnum("DaemonLoss", "RUN REFUSE")
#: A GPU, or a slice of the node's memory and cores.
DeviceType = StrEnum("DeviceType", "CUDA HOST")
#: Whether salusd looks for devices that no DeviceName record names.
AutoDetect = StrEnum("AutoDetect", "NVML OFF")
#: How Salus talks to Slurm.
SlurmAccess = StrEnum("SlurmAccess", "CLI PYSLURM")
#: The least severe level that is logged.
LogLevel = StrEnum("LogLevel", "DEBUG INFO WARNING ERROR")
#: The format of log lines.
LogFormat = StrEnum("LogFormat", "KEYVALUE JSON")
