"""Exit codes and one-line errors of every command."""

import pytest
import typer

from cli.entry import ExitCode, FailedError, run
from nodedaemon.core.errors import OperatingError, PeerError, RequestError, SalusError
from nodedaemon.wire.envelope import NotFoundError, NotPermittedError, UnreachableError


def _app_that_raises(error: BaseException | None) -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    def _command() -> None:
        if error is not None:
            raise error

    return app


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, ExitCode.OK),
        (RequestError("job 7: not a number"), ExitCode.USAGE),
        (PeerError("node gpu01: bad frame"), ExitCode.FAILED),
        (OperatingError("NVML: lost"), ExitCode.FAILED),
        (FailedError("run: job ended with 3"), ExitCode.FAILED),
        (NotFoundError("job 7: not known"), ExitCode.NOT_FOUND),
        (NotPermittedError("drain: host0: needs root"), ExitCode.NOT_PERMITTED),
        (UnreachableError("status: salusd: no socket"), ExitCode.UNREACHABLE),
    ],
)
def test_each_error_has_its_exit_code_and_one_line(error, code, capsys):
    assert run(_app_that_raises(error), "salus", []) == code
    expected = f"salus: {error}\n" if error else ""
    assert capsys.readouterr().err == expected


def test_usage_errors_exit_with_2(capsys):
    assert run(_app_that_raises(None), "salus", ["--no-such-option"]) == ExitCode.USAGE
    assert "--no-such-option" in capsys.readouterr().err


def test_a_bug_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        run(_app_that_raises(ZeroDivisionError()), "salus", [])


@pytest.mark.parametrize(("status", "code"), [(3, 3), (None, 0), ("text", 1)])
def test_a_command_may_exit_by_itself(status, code):
    assert run(_app_that_raises(SystemExit(status)), "salus", []) == code


def test_every_error_is_a_salus_error():
    for kind in (
        RequestError,
        PeerError,
        OperatingError,
        NotFoundError,
        NotPermittedError,
        UnreachableError,
        FailedError,
    ):
        assert issubclass(kind, SalusError)
