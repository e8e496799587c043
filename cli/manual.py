"""Generates the manual pages from the commands.

`make man` writes docs/man/PROGRAM.md; a test checks that the files in the tree are current.
"""

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from cli.entry import ExitCode

EXIT_CODE_TEXTS = {
    ExitCode.OK: "success",
    ExitCode.FAILED: "the command failed, or a check found problems",
    ExitCode.USAGE: "invalid usage, or an unreadable file",
    ExitCode.NOT_FOUND: "the named object does not exist",
    ExitCode.NOT_PERMITTED: "permission denied",
    ExitCode.UNREACHABLE: "a daemon or the database does not answer",
}


CONVENTIONS = """
Every command has `--help`. `--install-completion` sets up completion for bash, zsh and fish. An error
is one line on standard error. Scripts should use `--json`. `NO_COLOR` turns colours off.
"""


class Program(NamedTuple):
    """A console script and the module of its typer application."""

    name: str
    module: str
    summary: str


PROGRAMS = (
    Program("salus", "cli.main", "share one GPU between several deep-learning jobs"),
    Program("salus-acct", "cli.acct.main", "report who used the devices and what sharing gained"),
)


def manual_text(program: Program) -> str:
    """The content of docs/man/PROGRAM.md."""
    command = typer.main.get_command(importlib.import_module(program.module).app)
    parts = [
        f"# {program.name}(1)\n\n## Name\n\n{program.name} - {program.summary}\n",
        f"\n## Synopsis\n\n`{program.name} [OPTIONS] COMMAND [ARGUMENTS]`\n",
        f"\n## Description\n\n{_paragraphs(command.help)}\n",
        CONVENTIONS,
        "\n## Options\n",
        *_parameters(command),
        "\n## Commands\n",
        *_commands(command, program.name),
        "\n## Exit codes\n\n",
        *(f"- {int(code)}: {EXIT_CODE_TEXTS[code]}\n" for code in ExitCode),
        "\n## Environment\n\n`SALUS_CONF` names the configuration file.\n",
        "\n## See also\n\n[salus.conf(5)](salus.conf.md), slurm.conf(5)\n",
    ]
    return "".join(parts)


def _commands(command: object, path: str) -> Iterator[str]:
    if not isinstance(command, TyperGroup):
        return
    for name, child in sorted(command.commands.items()):
        if getattr(child, "hidden", False):
            continue
        child_path = f"{path} {name}"
        if isinstance(child, TyperGroup):
            yield from _commands(child, child_path)
        elif isinstance(child, TyperCommand):
            yield f"\n### {child_path}\n\n`{_synopsis(child, child_path)}`\n\n{_paragraphs(child.help)}\n"
            yield from _parameters(child)


def _synopsis(command: TyperCommand, path: str) -> str:
    words = [path]
    if any(isinstance(parameter, TyperOption) for parameter in command.params):
        words.append("[OPTIONS]")
    words += [_argument_name(item) for item in command.params if isinstance(item, TyperArgument)]
    return " ".join(words)


def _parameters(command: object) -> Iterator[str]:
    for parameter in getattr(command, "params", ()):
        if getattr(parameter, "hidden", False):
            continue
        if isinstance(parameter, TyperArgument) and parameter.help:
            yield f"\n`{_argument_name(parameter)}`\n: {parameter.help}\n"
        elif isinstance(parameter, TyperOption) and "--help" not in parameter.opts:
            # The short form first.
            names = ", ".join(sorted((*parameter.opts, *parameter.secondary_opts), key=len))
            value = "" if parameter.is_flag else f" {parameter.metavar or (parameter.name or '').upper()}"
            yield f"\n`{names}{value}`\n: {parameter.help or ''}{_default(parameter)}\n"


def _argument_name(argument: TyperArgument) -> str:
    name = argument.metavar or (argument.name or "").upper()
    return (name if argument.required else f"[{name}]") + ("..." if argument.nargs == -1 else "")


def _default(option: TyperOption) -> str:
    default = option.default
    if option.is_flag or default in (None, "", [], ()) or callable(default):
        return ""
    return f" Default: {getattr(default, 'value', default)}."


def _paragraphs(text: str | None) -> str:
    return re.sub(r"[ \t]+\n", "\n", (text or "").strip())


def main(directory: str) -> None:
    """Write the page of every program."""
    for program in PROGRAMS:
        (Path(directory) / f"{program.name}.md").write_text(manual_text(program))


if __name__ == "__main__":
    main(*sys.argv[1:])
