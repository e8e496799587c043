"""What `salus` and `salus-acct` have in common: global options, exit codes, and one line on stderr per error.

Commands raise exceptions; only `run` prints them and chooses the exit code. An exception that is not a SalusError is a
bug and keeps its traceback.
"""

import sys
from enum import IntEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from nodedaemon.config.kinds import Kind
from nodedaemon.core.errors import OperatingError, RequestError, SalusError
from nodedaemon.wire.envelope import NotFoundError, NotPermittedError, UnreachableError
from nodedaemon.wire.text import visible_lines

T = TypeVar("T")


class ExitCode(IntEnum):
    """Exit codes that scripts may rely on."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    NOT_PERMITTED = 4
    UNREACHABLE = 5


class FailedError(OperatingError):
    """The request was valid, but the command failed."""


# The first match counts, so subclasses come before their base classes.
EXIT_CODES: tuple[tuple[type[SalusError], ExitCode], ...] = (
    (NotFoundError, ExitCode.NOT_FOUND),
    (NotPermittedError, ExitCode.NOT_PERMITTED),
    (UnreachableError, ExitCode.UNREACHABLE),
    (RequestError, ExitCode.USAGE),
    (SalusError, ExitCode.FAILED),
)


def exit_code_of(error: SalusError) -> ExitCode:
    """The exit code for `error`."""
    return next(code for kind, code in EXIT_CODES if isinstance(error, kind))


def parse_option(command: str, option: str, kind: Kind[T], text: str) -> T:
    """The value of an option whose text is of the given kind; RequestError names the command and the option."""
    try:
        return kind.parse(text)
    except ValueError as error:
        raise RequestError(f"{command}: {option}: {error}") from error


def new_program(name: str, summary: str) -> typer.Typer:
    """A typer application with the global options; commands get the configuration from `cli.site.config.config_of`."""
    app = typer.Typer(
        name=name,
        help=summary,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        # Join the lines of a paragraph: docstrings are wrapped at another width than the terminal.
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def print_version(is_wanted: bool) -> None:
        if is_wanted:
            print(f"{name} {version('salus')}")
            raise typer.Exit

    @app.callback()
    def set_options(
        context: typer.Context,
        config_file: Annotated[
            Path | None,
            typer.Option("--config-file", "-f", metavar="FILE", help="Configuration file; overrides SALUS_CONF."),
        ] = None,
        _version: Annotated[
            bool, typer.Option("--version", "-V", callback=print_version, is_eager=True, help="Print the version.")
        ] = False,
    ) -> None:
        context.obj = config_file

    return app


def run(app: typer.Typer, name: str, arguments: list[str] | None = None) -> int:
    """Run `app` as the program `name` and return its exit code. Typer itself prints usage errors."""
    try:
        app(args=arguments, prog_name=name)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else ExitCode.OK if end.code is None else ExitCode.FAILED
    except SalusError as error:
        print(f"{name}: {visible_lines(str(error))}", file=sys.stderr)
        return exit_code_of(error)
    return ExitCode.OK
