"""What `salus status` and `salus why` show where no salusd runs: the queue as salus-admitd sees it, by credential.

Login nodes have no daemon of their own. A user sees the own jobs, an operator all; the service decides which.
"""

from typing import Any

import typer

from cli.output.render import Column, Form, write_json, write_rows
from cli.output.units import size_text
from cli.remote.admitd import ask_admission
from cli.site.config import config_of

COLUMNS = (
    Column("target", "JOB"),
    Column("user", "USER"),
    Column("partition", "PARTITION"),
    Column("state", "STATE"),
    Column("kind", "KIND"),
    Column("class", "CLASS"),
    Column("persistent_bytes", "P", "right"),
    Column("ephemeral_bytes", "E", "right"),
    Column("shards", "SHARDS", "right"),
    Column("nodes", "NODES"),
    Column("reason", "REASON"),
)


def show_queue(context: typer.Context, job: str, form: Form) -> None:
    """Print the asker's jobs in Slurm's queue, or one of them."""
    jobs: list[dict[str, Any]] = ask_admission(config_of(context).settings.admission, {"op": "status"})["jobs"]
    jobs = [row for row in jobs if not job or job in (str(row["id"]), row["target"])]
    if form is Form.JSON:
        write_json(jobs)
        return
    if form is Form.TABLE:
        jobs = [{**row, **{key: size_text(row[key]) for key in _SIZES if row[key] is not None}} for row in jobs]
    write_rows(jobs, COLUMNS, form)


_SIZES = ("persistent_bytes", "ephemeral_bytes")


def show_why(context: typer.Context, job: str, *, is_json: bool) -> None:
    """Print why a job has its charge, and what it would get if it were submitted now."""
    told = ask_admission(config_of(context).settings.admission, {"op": "why", "job": job})
    if is_json:
        write_json({key: told[key] for key in ("job", "profile", "now")})
        return
    row, profile, now = told["job"], told["profile"], told["now"]
    print(f"job {row['target']}: {row['state'].lower()}, {row['reason'] or 'no reason from Slurm'}")
    print(f"  admitted: {row['kind']}, {row['shards'] or 'all'} shards, class {row['class']}")
    if profile is None:
        print("  profile:  none: its first run gets a device of its own and is measured")
    else:
        sizes = f"keeps {size_text(profile['persistent_bytes'])}, borrows {size_text(profile['ephemeral_bytes'])}"
        print(f"  profile:  {sizes}, from {profile['run_count']} runs")
    answer = f"{now['shards'] or 'all'} shards by {now['basis']}" if now["is_admitted"] else "refused"
    print(f"  now:      {answer}")
    for reason in now["reasons"]:
        print(f"            {reason}")
