"""Tables from Slurm's commands, with a delimiter that nobody can guess.

Slurm quotes nothing that it prints. Users choose the names of jobs and, on some sites, of accounts. A name may contain
newlines, or what looks like the rest of a row and a row of another job. So each call of a command uses a new, random
delimiter, which follows every cell, and a reader looks only for that delimiter.

slurm_plugin/hooks/prolog.py does the same without this module.
"""

from __future__ import annotations

import secrets

from nodedaemon.core.errors import OperatingError


def new_delimiter() -> str:
    # Slurm accepts several characters. It must not begin with a digit: squeue expects it after the width of a column.
    return f"x{secrets.token_hex(16)}"


def split_rows(text: str, delimiter: str, column_count: int) -> list[list[str]]:
    """The rows of a table without a heading. The delimiter follows each cell, and a newline follows each row."""
    *cells, rest = text.split(delimiter)
    rows = [cells[start : start + column_count] for start in range(0, len(cells), column_count)]
    for row in rows[1:]:
        if not row[0].startswith("\n"):
            raise OperatingError("Slurm: a table was not understood: its rows differ in length; see Slurm's log")
        row[0] = row[0][1:]
    if rest.strip("\n") or (rows and len(rows[-1]) != column_count):
        raise OperatingError("Slurm: a table was not understood: it is cut off; see Slurm's log")
    return rows


def squeue_format(columns: tuple[tuple[str, int], ...], delimiter: str) -> str:
    """The option that makes squeue print these columns, each up to its width and followed by the delimiter."""
    return "--Format=" + ",".join(f"{name}:{width}{delimiter}" for name, width in columns)


def squeue_rows(text: str, columns: tuple[tuple[str, int], ...], delimiter: str) -> list[list[str]]:
    """The cells that squeue printed, without the blanks that fill a column up; empty where Slurm prints (null)."""
    rows = [[cell.strip(" ") for cell in row] for row in split_rows(text, delimiter, len(columns))]
    return [["" if cell == "(null)" else cell for cell in row] for row in rows]
