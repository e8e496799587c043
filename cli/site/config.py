"""`salus config`: check a configuration file, show what is in effect and why."""

import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cli.entry import ExitCode
from cli.output.render import Column, Json, Parsable, form_of, write_json, write_rows
from cli.output.units import counted
from nodedaemon.config import Config, Rejected, UnreadableError, load, load_or_raise, locate
from nodedaemon.config.document import template_text
from nodedaemon.config.effective import (
    Effective,
    find_key,
    key_names,
    values_in_effect,
    values_of_node,
    values_of_partition,
)
from nodedaemon.config.finding import nearest_of
from nodedaemon.wire.envelope import NotFoundError

app = typer.Typer(no_args_is_help=True, help="Check the configuration, or show what is in effect.")

File = Annotated[Path | None, typer.Argument(metavar="FILE", show_default=False, help="The file to read.")]


def config_of(context: typer.Context) -> Config:
    """The configuration that a command runs with; every finding in one RequestError if it cannot be used."""
    return load_or_raise(locate(context.find_root().obj))


@app.command()
def check(
    context: typer.Context,
    file: File = None,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Also compare with slurm.conf and gres.conf (SlurmConf).")
    ] = False,
    json: Json = False,
) -> None:
    """Report everything that is wrong with a configuration file: unknown keys, bad units, contradictions.

    Exit code 0: usable; 1: there are findings; 2: the file cannot be read.
    """
    path = _path(context, file)
    loaded = load(path)
    findings = loaded.findings if isinstance(loaded, Rejected) else ()
    if slurm and isinstance(loaded, Config):
        _check_slurm(loaded, is_json=json)
        return
    if json:
        shown = [{**finding.place._asdict(), **asdict(finding), "text": str(finding)} for finding in findings]
        for row in shown:
            del row["place"]
        write_json({"file": str(path), "ok": not findings, "findings": shown})
    elif isinstance(loaded, Config):
        count = len(loaded.values) + sum(len(record.values) + len(record.fields) for record in loaded.records)
        places = f"{counted(len(loaded.records), 'record')} and {counted(len(loaded.files), 'file')}"
        print(f"{path}: ok, {counted(count, 'value')} set in {places}")
    else:
        print(loaded)
        print(f"salus: config check: {path}: {counted(len(findings), 'finding')}; fix all of them", file=sys.stderr)
    if findings:
        raise typer.Exit(ExitCode.FAILED)


def _check_slurm(config: Config, *, is_json: bool) -> None:
    from cli.site.slurm_config import check_slurm

    found = check_slurm(config)
    has_errors = any(one.level == "error" for one in found)
    texts = [str(one) for one in found]
    if is_json:
        write_json({"file": config.settings.slurm.conf, "ok": not has_errors, "findings": texts})
    else:
        print("\n".join(texts) or f"{config.settings.slurm.conf}: agrees with salus.conf")
    if has_errors:
        raise typer.Exit(ExitCode.FAILED)


@app.command()
def show(
    context: typer.Context,
    file: File = None,
    origin: Annotated[bool, typer.Option("--origin", help="Also print the line that each value comes from.")] = False,
    node: Annotated[str | None, typer.Option(metavar="NAME", help="Values for this node.")] = None,
    partition: Annotated[str | None, typer.Option(metavar="NAME", help="Values for this partition.")] = None,
    explain: Annotated[str | None, typer.Option(metavar="KEY", help="Explain a key, and print its value.")] = None,
    template: Annotated[bool, typer.Option("--template", help="Print a file with every key and its default.")] = False,
    parsable: Parsable = False,
    json: Json = False,
) -> None:
    """Print every value in effect, from the configuration file or by default."""
    if template:
        print(template_text(), end="")
        return
    path = locate(file or context.find_root().obj)
    loaded = load(path)
    if isinstance(loaded, Rejected):
        print(loaded, file=sys.stderr)
        raise typer.Exit(ExitCode.FAILED)
    if node is not None:
        values = values_of_node(loaded, node)
    elif partition is not None:
        values = values_of_partition(loaded, partition)
    else:
        values = values_in_effect(loaded)
    if explain is not None:
        _explain(explain, values, is_json=json)
        return
    rows = [asdict(value) for value in values]
    columns = [Column("key", "Key"), Column("value", "Value"), Column("record", "Record")]
    if origin or json:
        columns.append(Column("origin", "Origin"))
    if not any(row["record"] for row in rows) and not json and not parsable:
        columns.remove(Column("record", "Record"))
    write_rows(rows, columns, form_of(parsable=parsable, json=json))


def _path(context: typer.Context, file: Path | None) -> Path:
    path = locate(file or context.find_root().obj)
    if path is None:
        raise UnreadableError(
            "config check: no file: SALUS_CONF is not set and /etc/salus/salus.conf does not exist; name a file"
        )
    return path


def _explain(name: str, values: Iterable[Effective], *, is_json: bool) -> None:
    key = find_key(name)
    if key is None:
        nearest = nearest_of(name, key_names())
        raise NotFoundError(f"config show: {name}: unknown key" + (f"; did you mean {nearest}?" if nearest else ""))
    found = [value for value in values if value.key == key.name]
    if is_json:
        write_json(
            {
                "key": key.name,
                "why": key.description,
                "kind": key.kind.type_name,
                "default": key.default_text(),
                "records": list(key.scopes),
                "restart": not key.is_live,
                "values": [asdict(value) for value in found],
            }
        )
        return
    print(f"{key.name}: {key.description}")
    print(f"  value:    {key.kind.type_name}")
    print(f"  default:  {'required' if key.is_required else key.default_text() or '(empty)'}")
    print(f"  allowed:  {' or '.join(['on a line of its own', *(f'in {scope} records' for scope in key.scopes)])}")
    print(f"  applied:  {'at a reload' if key.is_live else 'at a restart of the daemon'}")
    for value in found:
        subject = f"{value.record}: " if value.record else ""
        print(f"  in effect: {subject}{value.value or '(empty)'} ({value.origin})")
