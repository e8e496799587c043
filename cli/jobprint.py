"""`salus-acct job`: asks for a job's pages, prints them, and merges the summary into AdminComment on request."""

import os
from importlib.metadata import version
from typing import TYPE_CHECKING

import msgspec

from accounting.jobpage import JobPage
from accounting.service import AskJob
from cli.backend import ask, may_open
from cli.entry import NotPermittedError
from cli.jobids import parse_jobs
from cli.jobtext import notes, page_lines
from cli.moments import SECOND_NS
from cli.render import write_json
from cli.reporttext import DERIVED, JSON_SCHEMA
from cli.summary import merge_summary, summary_segment
from nodedaemon.config import Config
from nodedaemon.core.errors import OperatingError, RequestError

if TYPE_CHECKING:
    from slurm_plugin.slurm.cli import SlurmCommands


def print_job(config: Config, text: str, clusters: str, *, is_json: bool) -> list[JobPage]:
    """Print the runs of a job, oldest first."""
    jobs = parse_jobs(text)
    if not jobs:
        raise RequestError(f"job not shown: {text!r}: no job id; write for instance 123 or 123_4")
    names = tuple(name for name in clusters.split(",") if name)
    pages: list[JobPage] = []
    for job in jobs:
        pages += ask(config, AskJob(job=job, clusters=names), list[JobPage])
    if is_json:
        data = [msgspec.to_builtins(page) | {"notes": notes(page)} for page in pages]
        for told, page in zip(data, pages, strict=True):
            told["measures"] |= {name: getattr(page.measures, name) for name in DERIVED}
        write_json({"meta": {"schema": JSON_SCHEMA, "version": version("salus")}, "data": data})
        return pages
    style = os.environ.get("SLURM_TIME_FORMAT", "standard")
    for number, page in enumerate(pages):
        if number:
            print()
        print("\n".join(line.replace("\x1b", "\ufffd") for line in page_lines(page, style)))
    return pages


def store_summary(config: Config, pages: list[JobPage]) -> None:
    """Merge the last run's summary into the job's AdminComment and print what stands there now."""
    if not may_open(config):
        raise NotPermittedError("summary not stored: AdminComment is root's and SlurmUser's to change; ask an admin")
    page = pages[-1]
    commands = commands_of(config)
    told = commands.run("sacct", "-X", "-n", "-P", "-j", str(page.job_id), "-o", "AdminComment")
    print(f"AdminComment of job {page.job_id}: {merge_into_slurm(commands, page, told.strip(chr(10)))}")


def merge_into_slurm(commands: "SlurmCommands", page: JobPage, comment: str) -> str:
    """Write `comment` with the page's summary back, to slurmctld or, once it has forgotten the job, to slurmdbd."""
    merged = merge_summary(comment, summary_segment(page))
    try:
        commands.run("scontrol", "update", f"JobId={page.job_id}", f"AdminComment={merged}")
    except OperatingError:
        change = ("set", f"AdminComment={merged}")
        commands.run("sacctmgr", "-i", "modify", "job", "where", f"jobid={page.job_id}", *change)
    return merged


def commands_of(config: Config) -> "SlurmCommands":
    """Slurm's commands as the configuration finds them."""
    from slurm_plugin.slurm.cli import SlurmCommands

    slurm = config.settings.slurm
    return SlurmCommands(slurm.bin_dir, slurm.timeout_ns / SECOND_NS)
