"""Reads Slurm's job description: what a user asks of Salus. Pure: values in, values out.

Options come from the SPANK plugin as `SALUS_*`. A submission lists all problems with a request at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from nodedaemon.core.types import GIB, KIB, MIB, JobClass
from slurm_plugin.slurm import JobDescription, read_description, text_of
from slurm_plugin.slurm.tres import parse_tres

#: The options of sbatch by the field of the job description that they set.
TRES_OPTIONS = {
    "tres_per_node": "--gres",
    "tres_per_job": "--gpus or --tres-per-job",
    "tres_per_socket": "--gpus-per-socket",
    "tres_per_task": "--gpus-per-task or --tres-per-task",
}
CLASSES = tuple(map(str, JobClass))

SIZE_UNITS = {"": MIB, "K": KIB, "M": MIB, "G": GIB, "T": 1024 * GIB}
NAME_PATTERN = re.compile(r"[A-Za-z0-9_.:+-]{1,100}")
SIZE_PATTERN = re.compile(r"(\d{1,12})([KMGT]?)(?:I?B)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Submission:
    """A job as its user asks for it. `problems` has one message for each mistake in the request.

    `declared` is the value of --salus-mem, `declared_bytes` are its persistent and ephemeral bytes.
    """

    uid: int
    job: JobDescription
    array: str
    is_batch: bool
    is_requeue_allowed: bool
    signature: str
    declared: str
    declared_bytes: tuple[int, int] | None
    job_class: str
    time_s: int | None
    problems: tuple[str, ...]


def parse_size(text: str) -> int | None:
    """Bytes of `2G`, `512M`, `300` (MiB, as Slurm counts); None if it is not a size."""
    matched = SIZE_PATTERN.fullmatch(text.strip())
    return int(matched[1]) * SIZE_UNITS[matched[2].upper()] if matched else None


def parse_sizes(text: str) -> tuple[int, int] | None:
    """The two sizes of `2G,6G`, or `2G` and 0; None if the text is neither, or if the first size is 0."""
    first, comma, second = text.partition(",")
    persistent_bytes, ephemeral_bytes = parse_size(first), parse_size(second) if comma else 0
    return (persistent_bytes, ephemeral_bytes) if persistent_bytes and ephemeral_bytes is not None else None


def parse_time(text: str) -> int | None:
    """Seconds of Slurm's time formats (`30`, `30:00`, `1:30:00`, `2-12`, `2-12:30:00`); None if it is not a time."""
    matched = re.fullmatch(r"(?:(\d{1,5})-)?(\d{1,7})(?::(\d{1,2}))?(?::(\d{1,2}))?", text.strip())
    if matched is None:
        return None
    days, *parts = matched.groups()
    values = [int(part) for part in parts if part]
    # Without days and with fewer than three parts, the first is minutes.
    units_s = (3600, 60, 1) if days or len(values) == 3 else (60, 1)
    return int(days or 0) * 86400 + sum(value * unit_s for value, unit_s in zip(values, units_s, strict=False))


def read_submission(
    uid: int, fields: Mapping[str, object], options: Mapping[str, object], *, is_batch: bool = True
) -> Submission:
    """Read one submit as job_submit.lua sends it."""
    problems = tres_problems(fields)
    name, memory = text_of(options, "SALUS_PROFILE"), text_of(options, "SALUS_MEM")
    job_class, time = text_of(options, "SALUS_CLASS"), text_of(options, "SALUS_TIME")
    signature = text_of(options, "SALUS_SIGNATURE")
    for option, value in (("--salus-profile", name), ("signature", signature)):
        if value and not NAME_PATTERN.fullmatch(value):
            problems.append(f"{option}={value[:40]}: not a name; use up to 100 letters, digits and _.:+-")
    declared_bytes = parse_sizes(memory)
    if memory and declared_bytes is None:
        problems.append(f"--salus-mem={memory[:40]}: not a size; write P or P,E as in --salus-mem=2G,6G")
    if job_class and job_class not in CLASSES:
        problems.append(f"--salus-class={job_class[:40]}: no such class; use {', '.join(CLASSES)}")
    time_s = parse_time(time)
    if time and time_s is None:
        problems.append(f"--salus-time={time[:40]}: not a time; write minutes, HH:MM:SS or D-HH:MM:SS")
    return Submission(
        uid=uid,
        job=read_description(fields),
        array=text_of(fields, "array_inx"),
        is_batch=is_batch,
        is_requeue_allowed=fields.get("requeue") != 0,
        signature=f"name:{name}" if name else signature,
        declared=memory if declared_bytes else "",
        declared_bytes=declared_bytes,
        job_class=job_class,
        time_s=time_s,
        problems=tuple(problems),
    )


def tres_problems(fields: Mapping[str, object]) -> list[str]:
    """What is wrong with the requested resources, each with what to do instead."""
    problems = []
    requested = [(name, tres) for name in TRES_OPTIONS for tres in parse_tres(text_of(fields, name))]
    has_salus = any(tres.name == "salus" for _, tres in requested)
    for name, tres in requested:
        option = TRES_OPTIONS[name]
        if tres.name == "shard":
            problems.append(f"{option} asks for shard: only Salus may set shards; ask for --gres=salus:1 instead")
        elif tres.name == "salus" and name != "tres_per_node":
            problems.append(f"{option} asks for salus: Slurm counts it per node; ask for --gres=salus:1 instead")
        elif tres.name == "salus" and (tres.count != 1 or tres.type):
            problems.append(
                f"--gres=salus:{tres.type + ':' if tres.type else ''}{tres.count}: "
                "a job can share only one device per node; ask for --gres=salus:1"
            )
        elif tres.name in ("gpu", "mps") and has_salus:
            problems.append(
                f"{option} asks for {tres.name} and salus: a job has a whole device or shares one; "
                f"ask for --gres=salus:1 or for {tres.name} alone"
            )
    return problems
