"""`salus run`: the environment of the job, and its signature."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from cli.node.run import environment_of, signature_of
from nodedaemon.core.errors import RequestError


def test_salus_prepends_to_the_users_variables_and_never_replaces_them() -> None:
    own = {"PYTHONPATH": "mine", "LD_PRELOAD": "mine.so", "HOME": "here", "OMP_NUM_THREADS": "3"}
    added = ["SALUS_SOCKET=s", "PYTHONPATH=ours", "LD_PRELOAD=ours.so", "OMP_NUM_THREADS=1"]
    assert environment_of(added, own) == {
        "SALUS_SOCKET": "s",
        "PYTHONPATH": "ours:mine",
        "LD_PRELOAD": "ours.so mine.so",
        "HOME": "here",
        "OMP_NUM_THREADS": "3",
    }
    assert environment_of(["PYTHONPATH=ours"], {}) == {"PYTHONPATH": "ours"}


def test_the_signature_covers_arguments_and_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("one")
    first = signature_of(["python", str(script), "--batch", "4"])
    assert first == signature_of(["/usr/bin/python3", str(script), "--batch", "4"])
    assert first != signature_of(["python", str(script), "--batch", "8"])
    script.write_text("two")
    assert first != signature_of(["python", str(script), "--batch", "4"])


@pytest.mark.parametrize("options", [["--policy", "best"], ["--persistent", "much"]])
def test_invalid_options_are_reported_before_anything_is_started(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.node.run._daemon", lambda *_: pytest.fail("a daemon was asked"))
    result = CliRunner().invoke(app, ["run", *options, "--", "true"])
    assert isinstance(result.exception, RequestError)


def test_an_unknown_program_is_not_found() -> None:
    result = CliRunner().invoke(app, ["run", "--", "no-such-program-anywhere"])
    assert "no-such-program-anywhere" in str(result.exception)
