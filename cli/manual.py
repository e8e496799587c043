"""The manual pages of the programs, written from the commands themselves, so that none is missing and none lags.

`make man` writes docs/man/PROGRAM.md; a test compares them with what is in the tree.
"""

import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from cli.entry import ExitCode

EXIT_CODE_WORDS = {
    ExitCode.OK: "done",
    ExitCode.FAILED: "understood, but it failed; of a check: there are findings",
    ExitCode.USAGE: "wrong usage, or a file that cannot be read",
    ExitCode.NOT_FOUND: "what was named is not there",
    ExitCode.NOT_PERMITTED: "this user may not do it",
    ExitCode.UNREACHABLE: "a daemon or the database does not answer",
}


HABITS = """
`--help` works everywhere; `--install-completion` sets up completion for bash, zsh and fish. Errors are one line on
standard error. `--json` is for programs, tables are for people; `NO_COLOR` is honoured.
"""


@dataclass(frozen=True)
class Program:
    """A console script and where its typer application is."""

    name: str
    module: str
    summary: str


# A new program with a typer application adds its line.
PROGRAMS = (
    Program("salus", "cli.main", "share one GPU between several deep-learning jobs"),
    Program("salus-acct", "cli.acct.main", "who used the devices, and what sharing gained"),
)


def manual_text(program: Program) -> str:
    """docs/man/PROGRAM.md: every command with its arguments and options."""
    command = typer.main.get_command(importlib.import_module(program.module).app)
    parts = [
        f"# {program.name}(1)\n\n## Name\n\n{program.name} - {program.summary}\n",
        f"\n## Synopsis\n\n`{program.name} [OPTIONS] COMMAND [ARGUMENTS]`\n",
        f"\n## Description\n\n{_paragraphs(command.help)}\n",
        HABITS,
        "\n## Options\n",
        *_parameters(command),
        "\n## Commands\n",
        *_commands(command, program.name),
        "\n## Exit codes\n\n",
        *(f"- {int(code)}: {EXIT_CODE_WORDS[code]}\n" for code in ExitCode),
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
            # The short form first, as people type it.
            names = ", ".join(sorted((*parameter.opts, *parameter.secondary_opts), key=len))
            value = "" if parameter.is_flag else f" {parameter.metavar or (parameter.name or '').upper()}"
            yield f"\n`{names}{value}`\n: {parameter.help or ''}{_default(parameter)}\n"


def _argument_name(argument: TyperArgument) -> str:
    name = argument.metavar or (argument.name or "").upper()
    return name if argument.required or name.startswith("[") else f"[{name}]"


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
