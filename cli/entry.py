"""How every command of Salus ends: exit codes, and one line on stderr instead of a traceback.

A command raises; only `run` prints errors and chooses the code. An exception that is not a SalusError is a bug of
ours and keeps its traceback.
"""

import sys
from enum import IntEnum

import typer

from nodedaemon.core.errors import OperatingError, RequestError, SalusError
from nodedaemon.wire.envelope import NotFoundError, NotPermittedError, UnreachableError


class ExitCode(IntEnum):
    """What scripts may rely on; the same for `salus` and `salus-acct`."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    NOT_PERMITTED = 4
    UNREACHABLE = 5


class FailedError(OperatingError):
    """The command understood the request and could not carry it out."""


# The first match counts, so children stand before their parents.
EXIT_CODES: tuple[tuple[type[SalusError], ExitCode], ...] = (
    (NotFoundError, ExitCode.NOT_FOUND),
    (NotPermittedError, ExitCode.NOT_PERMITTED),
    (UnreachableError, ExitCode.UNREACHABLE),
    (RequestError, ExitCode.USAGE),
    (SalusError, ExitCode.FAILED),
)


def exit_code_of(error: SalusError) -> ExitCode:
    """The code that tells a script who must act on `error`."""
    return next(code for kind, code in EXIT_CODES if isinstance(error, kind))


def run(app: typer.Typer, name: str, arguments: list[str] | None = None) -> int:
    """Run `app` as the program `name` and return its exit code; usage errors are printed by typer itself."""
    try:
        app(args=arguments, prog_name=name)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else ExitCode.OK if end.code is None else ExitCode.FAILED
    except SalusError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return exit_code_of(error)
    return ExitCode.OK
