"""`salus-acct job`: prints a job's page and, on request, writes its summary into AdminComment."""

import os
from importlib.metadata import version

import msgspec

from accounting.questions import AskJob
from accounting.reports.values import JobPage
from cli.acct.job_ids import name_list, parse_jobs
from cli.acct.job_text import notes, page_lines
from cli.acct.report_text import JSON_SCHEMA, derived
from cli.output.render import write_json
from cli.remote.accounting import ask, may_open
from nodedaemon.config import Config
from nodedaemon.core.errors import RequestError
from nodedaemon.wire.envelope import NotPermittedError
from nodedaemon.wire.text import visible


def print_job(config: Config, text: str, clusters: str, *, is_json: bool) -> list[JobPage]:
    """Print the runs of a job, oldest first."""
    jobs = parse_jobs(text)
    if not jobs:
        raise RequestError(f"job not shown: {text!r} is not a job id; use a form such as 123 or 123_4")
    questions = [AskJob(job=job, clusters=name_list(clusters)) for job in jobs]
    pages = [page for question in questions for page in ask(config, question, list[JobPage])]
    if is_json:
        data = [msgspec.to_builtins(page) | {"notes": list(notes(page))} for page in pages]
        for run, page in zip(data, pages, strict=True):
            run["measures"] |= derived(page.measures)
        write_json({"meta": {"schema": JSON_SCHEMA, "version": version("salus")}, "data": data})
        return pages
    style = os.environ.get("SLURM_TIME_FORMAT", "standard")
    for number, page in enumerate(pages):
        if number:
            print()
        print("\n".join(page_lines(page, style)))
    return pages


def store_summary(config: Config, pages: list[JobPage]) -> None:
    """Write the last run's summary into the job's AdminComment and print the result."""
    if not may_open(config):
        raise NotPermittedError("summary not stored: only root and SlurmUser may change AdminComment; ask an admin")
    from slurm_plugin.slurm.sacct import accounting_commands
    from slurm_plugin.slurm.sacct import store_summary as store

    page = pages[-1]
    comment = store(accounting_commands(config.settings.slurm), page)
    print(f"AdminComment of job {page.job_id}: {visible(comment)}")
