"""Writes rows in one of three formats: a table, -P as in Slurm's commands, and JSON.

Only the table uses rich, which is imported on use. The other formats never wrap or colour.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import IO, Annotated, Literal, NamedTuple

import typer

from nodedaemon.wire.text import visible, visible_json

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Parsable = Annotated[bool, typer.Option("--parsable2", "-P", help="Print columns separated by |.")]

Cell = str | int | float | bool | None


# The formats of `write_rows`.
Form = Enum("Form", "TABLE PARSABLE JSON")


class Column(NamedTuple):
    """One column: its key in a row and in JSON, its heading, and its alignment in a table."""

    key: str
    heading: str
    align: Literal["left", "right"] = "left"


def parse_columns(text: str) -> tuple[Column, ...]:
    """Columns from "key=HEADING ..."; a heading that ends in > is right-aligned, an underscore in it is a space."""
    columns = []
    for part in text.split():
        key, _, heading = part.partition("=")
        align: Literal["left", "right"] = "right" if heading.endswith(">") else "left"
        columns.append(Column(key, heading.rstrip(">").replace("_", " "), align))
    return tuple(columns)


def form_of(*, parsable: bool = False, json: bool = False) -> Form:
    """The format that the flags select; --json overrides -P."""
    return Form.JSON if json else Form.PARSABLE if parsable else Form.TABLE


def text_of(cell: Cell) -> str:
    """A cell as text on one line: empty for None, yes or no for a bool."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return visible(str(cell))


def write_rows(
    rows: Iterable[Mapping[str, Cell]],
    columns: Sequence[Column],
    form: Form,
    *,
    stream: IO[str] | None = None,
) -> None:
    """Write `rows` to `stream` (default stdout). JSON is a list of objects with the columns' keys."""
    out = stream or sys.stdout
    match form:
        case Form.JSON:
            write_json([{column.key: row.get(column.key) for column in columns} for row in rows], stream=out)
        case Form.PARSABLE:
            print("|".join(column.heading for column in columns), file=out)
            for row in rows:
                print("|".join(_flat(text_of(row.get(column.key))) for column in columns), file=out)
        case Form.TABLE:
            _write_table(rows, columns, out)


def write_json(value: object, *, stream: IO[str] | None = None) -> None:
    """Write one indented JSON document with a final newline."""
    print(visible_json(json.dumps(value, indent=2, ensure_ascii=False)), file=stream or sys.stdout)


def _flat(text: str) -> str:
    # A row of -P has a fixed number of bars, even if a job's name contains one.
    return text.replace("|", "/")


def _write_table(rows: Iterable[Mapping[str, Cell]], columns: Sequence[Column], stream: IO[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # A pipe has no width: a table folded at 80 columns would break grep.
    console = Console(file=stream, width=None if stream.isatty() else 4096, no_color=bool(os.environ.get("NO_COLOR")))
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column.heading, justify=column.align, overflow="fold")
    for row in rows:
        # Text does not interpret markup: a job may have the name "[red]".
        table.add_row(*(Text(text_of(row.get(column.key))) for column in columns))
    console.print(table)
