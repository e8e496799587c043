"""`salus-acct db`: schema and retention, for root and SlurmUser. Daemons never change the schema themselves."""

import time
from datetime import datetime
from typing import Annotated

import typer

from cli.entry import ExitCode, FailedError
from cli.output.moments import format_moment, parse_moment
from cli.output.progress import counting
from cli.output.render import Json, write_json
from cli.remote.accounting import opened
from cli.site.config import config_of
from nodedaemon.core.errors import RequestError
from nodedaemon.core.types import SECOND_NS

app = typer.Typer(no_args_is_help=True, help="Maintain the database: schema, roll-up, purge.")

Before = Annotated[
    str, typer.Option("--before", metavar="TIME", help="Only records older than this time, in the format of sacct.")
]


@app.command()
def upgrade(context: typer.Context) -> None:
    """Create the schema, or upgrade it to the newest version. Stop the daemons first; their spools keep new records."""
    from accounting.storage import schema

    with opened(config_of(context), may_create=True, is_checked=False) as database:
        before = schema.current(database)
        schema.upgrade(database, on_step=lambda step: print(f"upgraded to {step}"))
        after = schema.current(database)
    print(f"schema {after}" + (" (was empty)" if before is None else f" (was {before})" if before != after else ""))


@app.command()
def current(context: typer.Context, json: Json = False) -> None:
    """Print the schema version of the database and the newest that this Salus supports."""
    from accounting.storage import schema

    with opened(config_of(context), is_checked=False) as database:
        found, head = schema.current(database), schema.head()
    if json:
        write_json({"current": found, "head": head})
    else:
        print(f"{found or 'empty'} (newest supported: {head})")


@app.command()
def check(context: typer.Context, json: Json = False) -> None:
    """Compare the tables with what this Salus expects. Exit code 0: they match; 1: they differ."""
    from accounting.storage import schema

    with opened(config_of(context), is_checked=False) as database:
        state = schema.check(database)
    if json:
        write_json({"current": state.current, "head": state.head, "differences": list(state.differences)})
    elif state.is_newer:
        print(f"schema {state.current} is newer than {state.head}; upgrade Salus on this host")
    elif state.current != state.head:
        print(f"schema {state.current or 'empty'} is older than {state.head}; run salus-acct db upgrade")
    else:
        print(f"schema {state.current}: " + ("ok" if not state.differences else "tables differ"))
    for difference in () if json else state.differences:
        print(f"  {difference}")
    if state.current != state.head or state.differences:
        raise typer.Exit(ExitCode.FAILED)


@app.command("roll-up")
def roll_up(context: typer.Context, before: Before = "") -> None:
    """Sum usage older than RollUpAfter or --before by day, job and device. Reports over whole days do not change."""
    from accounting.storage import retention

    config = config_of(context)
    edge_ns = _edge_ns(before, config.settings.storage.roll_up_after_ns, "RollUpAfter")
    with opened(config) as database, counting("days", len(retention.days_before(database, edge_ns))) as on_progress:
        before_count, after_count = retention.roll_up(database, edge_ns, on_progress=on_progress)
    print(f"rolled up usage before {format_moment(edge_ns)}: {before_count} rows became {after_count}")


@app.command()
def purge(
    context: typer.Context,
    before: Before = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be deleted.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete jobs older than PurgeAfter or --before, with all their records. Profiles stay."""
    from accounting.storage import retention

    config = config_of(context)
    edge_ns = _edge_ns(before, config.settings.storage.purge_after_ns, "PurgeAfter")
    with opened(config) as database:
        would = retention.purge(database, edge_ns, is_dry=True)
        counts = ", ".join(f"{count} {name}" for name, count in would.items())
        if dry_run:
            print(f"would delete everything older than {format_moment(edge_ns)}: {counts}")
            return
        if not yes and not typer.confirm(f"Delete everything older than {format_moment(edge_ns)}: {counts}?"):
            raise FailedError("nothing was deleted: not confirmed")
        with counting("jobs", would["jobs"]) as on_progress:
            done = retention.purge(database, edge_ns, on_progress=on_progress)
    print("deleted " + ", ".join(f"{count} {name}" for name, count in done.items()))


def _edge_ns(before: str, after_ns: int, key: str) -> int:
    if before:
        return parse_moment(before, datetime.now().astimezone())
    if after_ns == 0:
        raise RequestError(f"nothing to do: {key} is 0 (never); set it, or use --before")
    return (time.time_ns() - after_ns) // SECOND_NS * SECOND_NS
