"""Asks salus-admitd for `salus status` and `salus why`, on login nodes and for jobs that are still in the queue.

Users see only their own jobs, operators see all. salus-admitd identifies the caller by a munge credential.
"""

from typing import Any

import msgspec
import typer

from cli.entry import FailedError
from cli.output.render import Form, parse_columns, write_json, write_rows
from cli.output.units import size_text
from cli.remote.admitd import ask_admission
from cli.site.config import config_of
from nodedaemon.wire.control import WhyAnswer

COLUMNS = parse_columns(
    "target=JOB user=USER partition=PARTITION state=STATE kind=KIND class=CLASS persistent_bytes=P> "
    "ephemeral_bytes=E> shards=SHARDS> nodes=NODES reason=REASON"
)


def show_queue(context: typer.Context, job: str, form: Form) -> None:
    """Print the caller's jobs in Slurm's queue, or only `job`."""
    jobs: list[dict[str, Any]] = ask_admission(config_of(context).settings, {"verb": "status"})["jobs"]
    jobs = [row for row in jobs if not job or job in (str(row["id"]), row["target"])]
    if form is Form.JSON:
        write_json(jobs)
        return
    if form is Form.TABLE:
        jobs = [{**row, **{key: size_text(row[key]) for key in _SIZES if row[key] is not None}} for row in jobs]
    write_rows(jobs, COLUMNS, form)


_SIZES = ("persistent_bytes", "ephemeral_bytes")


def ask_queue_why(context: typer.Context, job: str) -> WhyAnswer:
    """Ask salus-admitd why a job has its charge, and what it would get if it were submitted now."""
    answer = ask_admission(config_of(context).settings, {"verb": "why", "job": job})
    try:
        return msgspec.convert(answer, WhyAnswer)
    except msgspec.ValidationError as error:
        raise FailedError(f"salus-admitd: why: {error}; it runs a different release; restart it") from error
