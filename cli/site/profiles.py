"""`salus profiles`: what admission uses for a signature, and why. Users manage their own profiles, operators all."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from cli.acct.job_ids import name_list
from cli.entry import parse_option
from cli.output.moments import format_moment
from cli.output.render import Cell, Column, Json, Parsable, form_of, parse_columns, write_json, write_rows
from cli.output.units import counted
from cli.remote.accounting import ask
from cli.site.config import config_of
from nodedaemon.config.kinds import Size, Time
from nodedaemon.core.errors import RequestError
from nodedaemon.core.types import MIB
from nodedaemon.wire.envelope import NotFoundError
from nodedaemon.wire.text import visible

if TYPE_CHECKING:
    from accounting.profiles import ProfileChange, ProfileView
    from nodedaemon.config import Config

app = typer.Typer(no_args_is_help=True, help="Show and manage what admission knows about your jobs.")

Signature = Annotated[str, typer.Argument(metavar="SIGNATURE", help="Signature from `salus profiles list`.")]
User = Annotated[str, typer.Option("--user", "-u", metavar="NAME", help="Owner of the profile. Default: you.")]
Model = Annotated[str, typer.Option("--model", metavar="NAME", help="Only on this device model.")]
Users = Annotated[str, typer.Option("--user", "-u", metavar="LIST", help="Only these users.")]

# Version of the format of `export`; incremented when a name in it changes its meaning.
EXPORT_VERSION = 1


@app.command("list")
def list_(
    context: typer.Context,
    user: Users = "",
    model: Model = "",
    parsable: Parsable = False,
    json: Json = False,
) -> None:
    """List profiles: the memory that admission uses, the number of runs, and the last run."""
    found = _find(config_of(context), users=user, model=model)
    columns = parse_columns(
        "user=User signature=Signature model=Model persistent=Persistent> ephemeral=Ephemeral> "
        "solo_ms=Solo_ms> runs=Runs> version=Version> state=State seen=Last_seen"
    )
    if json:
        write_json(msgspec.to_builtins(found))
        return
    rows = [
        {
            **_cells(profile),
            "solo_ms": None if profile.solo_iteration_ns is None else f"{profile.solo_iteration_ns / 1e6:.1f}",
            "runs": profile.run_count,
            "state": "stale" if profile.stale_reason else "ok",
            "seen": format_moment(profile.seen_utc_ns) if profile.seen_utc_ns else "never",
        }
        for profile in found
    ]
    write_rows(rows, columns, form_of(parsable=parsable))


@app.command()
def show(context: typer.Context, signature: Signature, user: User = "", model: Model = "", json: Json = False) -> None:
    """Show one profile: what admission uses, and why."""
    from accounting.profiles import describe

    found = _require(config_of(context), signature, user, model)
    if json:
        write_json(msgspec.to_builtins(found))
        return
    for profile in found:
        solo_ns = profile.solo_iteration_ns
        print(visible(describe(profile.key)))
        print(f"  admission uses   {_sizes(profile.persistent_bytes, profile.ephemeral_bytes)}")
        print("                   (plus headroom and rounding)")
        print(f"  because          {visible(profile.why())}")
        print(f"  measured         {_sizes(profile.measured_persistent_bytes, profile.measured_ephemeral_bytes)}")
        print(f"  live bytes       {_sizes(profile.live_persistent_bytes, profile.live_ephemeral_bytes)}")
        print(f"  solo iteration   {'n/a' if solo_ns is None else f'{solo_ns / 1e6:.3f} ms'}")
        print(f"  boundary rule    {visible(profile.boundary_rule) or 'not learned'}")
        print(f"  version          {profile.version}, changed {format_moment(profile.changed_utc_ns)}")


@app.command("set")
def set_(
    context: typer.Context,
    signature: Signature,
    persistent: Annotated[str, typer.Option("--persistent", "-p", metavar="SIZE", help="Persistent memory.")],
    ephemeral: Annotated[str, typer.Option("--ephemeral", "-e", metavar="SIZE", help="Memory of one iteration.")],
    model: Annotated[str, typer.Option("--model", metavar="NAME", help="Device model.")],
    solo: Annotated[str, typer.Option("--solo", metavar="TIME", help="Iteration time alone, such as 80ms.")] = "",
    user: User = "",
) -> None:
    """Set the values that admission uses, never below what was measured. A run that needs more still raises them."""
    stored = _store(
        config_of(context),
        user=user,
        signature=signature,
        device_model=model,
        persistent_bytes=parse_option("profiles set", "--persistent", Size(), persistent),
        ephemeral_bytes=parse_option("profiles set", "--ephemeral", Size(), ephemeral),
        solo_iteration_ns=parse_option("profiles set", "--solo", Time(), solo) if solo else None,
    )
    print(f"version {stored.version}: {stored.why()}")


@app.command()
def forget(context: typer.Context, signature: Signature, user: User = "", model: Model = "") -> None:
    """Treat the job as unknown again, and measure its next run. The history stays.

    The job is still charged for at least the memory that was measured. If an operator forgets the profile, this lower
    bound is removed too. If the owner has already forgotten the profile, the operator must use --user and --model.
    """
    from accounting.profiles import ProfileKey
    from accounting.questions import AskProfileForget

    config = config_of(context)
    if user and model:
        cluster = config.settings.cluster.name
        keys = [ProfileKey(cluster=cluster, user=user, signature=signature, device_model=model)]
    else:
        keys = [profile.key for profile in _require(config, signature, user, model)]
    for key in keys:
        ask(config, AskProfileForget(**msgspec.structs.asdict(key)), bool)
        print(f"forgotten: {key.signature} of {key.user} on {key.device_model}")


@app.command()
def history(
    context: typer.Context,
    signature: Annotated[
        str, typer.Argument(metavar="SIGNATURE", show_default=False, help="Only this signature.")
    ] = "",
    user: Users = "",
    parsable: Parsable = False,
    json: Json = False,
) -> None:
    """List profile changes, newest first: what changed, when, who changed it, and why."""
    from accounting.profiles import ProfileChange
    from accounting.questions import AskProfileHistory

    question = AskProfileHistory(users=name_list(user), signature=signature or None)
    found = ask(config_of(context), question, list[ProfileChange])
    if json:
        write_json(msgspec.to_builtins(found))
        return
    names = ("when", "user", "signature", "model", "version", "persistent", "ephemeral", "cause", "by", "detail")
    rows: list[dict[str, Cell]] = [
        {
            "when": format_moment(change.changed_utc_ns),
            **_cells(change),
            "cause": change.cause,
            "by": change.changed_by,
            "detail": change.detail,
        }
        for change in found
    ]
    write_rows(rows, [Column(name, name.capitalize()) for name in names], form_of(parsable=parsable))


@app.command()
def export(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", show_default=False, help="Default: standard output.")
    ] = None,
    user: Users = "",
) -> None:
    """Write profiles as JSON, for another cluster or as a backup."""
    found = _find(config_of(context), users=user)
    document = {"salus_profiles": EXPORT_VERSION, "profiles": msgspec.to_builtins(found)}
    if file is None:
        write_json(document)
        return
    try:
        with file.open("w", encoding="utf-8") as stream:
            write_json(document, stream=stream)
    except OSError as error:
        raise RequestError(f"profiles not exported: {file}: {error.strerror}") from error
    print(f"{counted(len(found), 'profile')} written to {file}", file=sys.stderr)


@app.command("import")
def import_(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Output of `export`; - for standard input.")],
) -> None:
    """Import exported profiles into this cluster. The whole file is read before the first profile is stored."""
    config = config_of(context)
    profiles = _read(file)
    for profile in profiles:
        _store(
            config,
            user=profile.key.user,
            signature=profile.key.signature,
            device_model=profile.key.device_model,
            persistent_bytes=profile.persistent_bytes,
            ephemeral_bytes=profile.ephemeral_bytes,
            solo_iteration_ns=profile.solo_iteration_ns,
            is_import=True,
        )
    print(f"{counted(len(profiles), 'profile')} imported", file=sys.stderr)


def _store(config: "Config", **values: Any) -> "ProfileView":
    from accounting.profiles import ProfileView
    from accounting.questions import AskProfileSet

    return ask(config, AskProfileSet(cluster=config.settings.cluster.name, **values), ProfileView)


def _find(config: "Config", *, users: str = "", model: str = "", signature: str = "") -> "list[ProfileView]":
    from accounting.profiles import ProfileView
    from accounting.questions import AskProfiles

    question = AskProfiles(users=name_list(users), signature=signature or None, device_model=model or None)
    return ask(config, question, list[ProfileView])


def _require(config: "Config", signature: str, user: str, model: str) -> "list[ProfileView]":
    found = _find(config, users=user, model=model, signature=signature)
    if not found:
        raise NotFoundError(f"profile not found: {signature}; salus profiles list shows those that you may see")
    owners = sorted({profile.key.user for profile in found})
    if len(owners) > 1:
        raise RequestError(f"ambiguous profile: {signature}: {', '.join(owners)} have one; choose one with -u")
    return found


def _read(file: Path) -> "list[ProfileView]":
    from accounting.profiles import ProfileView

    class Document(msgspec.Struct):
        salus_profiles: int
        profiles: list[ProfileView]

    try:
        content = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        document = msgspec.json.decode(content, type=Document)
    except OSError as error:
        raise RequestError(f"profiles not imported: {file}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise RequestError(f"profiles not imported: {file}: {error}; is it from salus profiles export?") from error
    if document.salus_profiles != EXPORT_VERSION:
        raise RequestError(
            f"profiles not imported: {file}: format {document.salus_profiles}, expected {EXPORT_VERSION}"
        )
    return document.profiles


def _cells(profile: "ProfileView | ProfileChange") -> dict[str, Cell]:
    """The columns that `list` and `history` have in common."""
    return {
        "user": profile.key.user,
        "signature": profile.key.signature,
        "model": profile.key.device_model,
        "version": profile.version,
        "persistent": _size(profile.persistent_bytes),
        "ephemeral": _size(profile.ephemeral_bytes),
    }


def _size(count: int) -> str:
    return Size().write(count) if count % MIB == 0 or count < MIB else f"{count / MIB:.1f}M"


def _sizes(persistent_bytes: int, ephemeral_bytes: int) -> str:
    return f"persistent {_size(persistent_bytes)}, ephemeral {_size(ephemeral_bytes)}"
