"""Reads Slurm's job description: what a user asks of Salus. Pure: values in, values out.

Options come from the SPANK plugin as `SALUS_*`. A submission lists all problems of a request at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from nodedaemon.core.types import GIB, KIB, MIB, JobClass
from slurm_plugin.slurm.tres import parse_tres

TRES_FIELDS = ("tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task")
TRES_OPTIONS = {
    "tres_per_node": "--gres",
    "tres_per_job": "--gpus or --tres-per-job",
    "tres_per_socket": "--gpus-per-socket",
    "tres_per_task": "--gpus-per-task or --tres-per-task",
}
CLASSES = tuple(map(str, JobClass))

# Slurm's "not set" and "infinite" start here; Lua sees the 64-bit ones as a float of about 1.8e19.
UNSET_MIN = {16: 0xFFFE, 32: 0xFFFFFFFE}
SIZE_UNITS = {"": MIB, "K": KIB, "M": MIB, "G": GIB, "T": 1024 * GIB}
NAME_PATTERN = re.compile(r"[A-Za-z0-9_.:+-]{1,100}")
SIZE_PATTERN = re.compile(r"(\d{1,12})([KMGT]?)(?:I?B)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Submission:
    """A job as its user asks for it. `problems` are complete sentences, one for each thing that is wrong."""

    uid: int
    partitions: tuple[str, ...] = ()
    account: str = ""
    qos: str = ""
    admin_comment: str = ""
    array: str = ""
    time_limit_s: int | None = None
    is_requeue_allowed: bool = True
    is_batch: bool = True
    tres_text: str = ""
    signature: str = ""
    declared: str = ""
    declared_persistent_bytes: int | None = None
    declared_ephemeral_bytes: int = 0
    job_class: str = ""
    time_s: int | None = None
    problems: tuple[str, ...] = ()


def parse_size(text: str) -> int | None:
    """Bytes of `2G`, `512M`, `300` (MiB, as Slurm counts); None if it is not a size."""
    matched = SIZE_PATTERN.fullmatch(text.strip())
    return int(matched[1]) * SIZE_UNITS[matched[2].upper()] if matched else None


def parse_time(text: str) -> int | None:
    """Seconds of Slurm's time formats (`30`, `30:00`, `1:30:00`, `2-12`, `2-12:30:00`); None if it is not a time."""
    matched = re.fullmatch(r"(?:(\d{1,5})-)?(\d{1,7})(?::(\d{1,2}))?(?::(\d{1,2}))?", text.strip())
    if matched is None:
        return None
    days, *rest = (int(part) if part is not None else None for part in matched.groups())
    first, second, third = rest
    assert first is not None
    if days is not None:
        return ((days * 24 + first) * 60 + (second or 0)) * 60 + (third or 0)
    if third is not None:
        return (first * 60 + (second or 0)) * 60 + third
    return first * 60 + (second or 0)


def number(value: object, bits: int = 32) -> int | None:
    """A number from Slurm; None if the field is not set."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < UNSET_MIN[bits] else None


def text_of(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def read_submission(
    uid: int, fields: Mapping[str, object], options: Mapping[str, object], *, is_batch: bool = True
) -> Submission:
    """Read one submit as job_submit.lua sends it."""
    minutes = number(fields.get("time_limit"))
    submission = Submission(
        uid=uid,
        partitions=tuple(filter(None, text_of(fields, "partition").split(","))),
        account=text_of(fields, "account"),
        qos=text_of(fields, "qos"),
        admin_comment=text_of(fields, "admin_comment"),
        array=text_of(fields, "array_inx"),
        time_limit_s=None if minutes is None else minutes * 60,
        is_requeue_allowed=number(fields.get("requeue"), 16) != 0,
        is_batch=is_batch,
        tres_text=text_of(fields, "tres_per_node"),
    )
    return _with_options(replace(submission, problems=tuple(tres_problems(fields))), options)


def tres_problems(fields: Mapping[str, object]) -> list[str]:
    """What is wrong with the requested resources, each with what to do instead."""
    problems = []
    asked = {name: parse_tres(text_of(fields, name)) for name in TRES_FIELDS}
    has_salus = any(tres.name == "salus" for found in asked.values() for tres in found)
    for name, found in asked.items():
        for tres in found:
            option = TRES_OPTIONS[name]
            if tres.name == "shard":
                problems.append(
                    f"{option} asks for shard: shards are what Salus charges; ask for --gres=salus:1 instead"
                )
            elif tres.name == "salus" and name != "tres_per_node":
                problems.append(f"{option} asks for salus: Slurm counts it per node; ask for --gres=salus:1 instead")
            elif tres.name == "salus" and (tres.count != 1 or tres.type):
                problems.append(
                    f"--gres=salus:{tres.type + ':' if tres.type else ''}{tres.count}: "
                    "a job can share only one device per node; ask for --gres=salus:1"
                )
            elif tres.name in ("gpu", "mps") and has_salus:
                problems.append(
                    f"{option} asks for {tres.name} beside salus: a job has a whole device or shares one; "
                    "ask for --gres=salus:1 or for gpu alone"
                )
    return problems


def _with_options(submission: Submission, options: Mapping[str, object]) -> Submission:
    problems = list(submission.problems)
    name, memory = text_of(options, "SALUS_PROFILE"), text_of(options, "SALUS_MEM")
    job_class, time = text_of(options, "SALUS_CLASS"), text_of(options, "SALUS_TIME")
    signature = text_of(options, "SALUS_SIGNATURE")
    for option, value in (("--salus-profile", name), ("signature", signature)):
        if value and not NAME_PATTERN.fullmatch(value):
            problems.append(f"{option}={value[:40]}: not a name; use up to 100 letters, digits and _.:+-")
    sizes = [parse_size(part) for part in memory.split(",")] if memory else []
    if memory and (len(sizes) > 2 or any(not size for size in sizes[:1]) or None in sizes):
        problems.append(f"--salus-mem={memory[:40]}: not a size; write P or P,E as in --salus-mem=2G,6G")
        sizes = []
    if job_class and job_class not in CLASSES:
        problems.append(f"--salus-class={job_class[:40]}: no such class; use {', '.join(CLASSES)}")
    seconds = parse_time(time) if time else None
    if time and seconds is None:
        problems.append(f"--salus-time={time[:40]}: not a time; write minutes, HH:MM:SS or D-HH:MM:SS")
    return replace(
        submission,
        signature=f"name:{name}" if name else signature,
        declared=memory if sizes else "",
        declared_persistent_bytes=sizes[0] if sizes else None,
        declared_ephemeral_bytes=(sizes[1] or 0) if len(sizes) == 2 else 0,
        job_class=job_class,
        time_s=seconds,
        problems=tuple(problems),
    )
