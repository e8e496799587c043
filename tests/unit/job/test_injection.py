"""The adaptor is loaded into a process without disturbing it. A stand-in for torch shows when it is attached."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from nodedaemon.wire import framing
from nodedaemon.wire.messages import Fault

JOB = Path(__file__).parents[3] / "nodedaemon" / "job"
# A package named torch that the adaptor cannot use: these tests are about loading, not about hooks.
STAND_IN = "loaded = True\n"


def run(code: str, folder: Path, *paths: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "torch").mkdir(exist_ok=True)
    (folder / "torch" / "__init__.py").write_text(STAND_IN)
    path = ":".join(str(entry) for entry in (*paths, folder))
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_process_that_never_imports_torch_gets_only_one_finder(tmp_path: Path) -> None:
    code = (
        "import sys; print(type(sys.meta_path[0]).__name__, 'salus_job.watch' in sys.modules, 'ctypes' in sys.modules)"
    )
    result = run(code, tmp_path, JOB, SALUS_SOCKET="nowhere")
    assert result.stdout.split() == ["FrameworkFinder", "False", "False"]
    assert result.stderr == ""


@pytest.mark.parametrize("is_verbose", [False, True], ids=["quiet", "verbose"])
def test_a_fault_is_reported_to_the_daemon_and_printed_only_on_request(tmp_path: Path, is_verbose: bool) -> None:
    path = tmp_path / "salusd.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        asked = {"SALUS_VERBOSE": "1"} if is_verbose else {}
        result = run("import torch; print(torch.loaded)", tmp_path, JOB, SALUS_SOCKET=str(path), **asked)
        listener.settimeout(20)
        connection, _ = listener.accept()
        received = framing.receive(connection)
        connection.close()
    assert (result.returncode, result.stdout) == (0, "True\n")
    assert result.stderr.count("\n") == is_verbose
    assert not is_verbose or result.stderr.endswith("; the job continues without Salus\n")
    assert received is not None
    fault = received[0]
    assert isinstance(fault, Fault)
    assert fault.text.startswith("attach: ")


def test_without_a_daemon_the_job_continues_and_prints_nothing(tmp_path: Path) -> None:
    result = run("import torch; print(torch.loaded)", tmp_path, JOB, SALUS_SOCKET="nowhere")
    assert (result.returncode, result.stdout, result.stderr) == (0, "True\n", "")


@pytest.mark.parametrize(
    "environment", [{}, {"SALUS_SOCKET": "nowhere", "SALUS_DISABLE": "1"}], ids=["no-socket", "off"]
)
def test_nothing_is_installed_without_salus_or_if_it_is_disabled(tmp_path: Path, environment: dict[str, str]) -> None:
    code = "import sys, torch; print('salus_job' in sys.modules, type(sys.meta_path[0]).__name__)"
    assert "False" in run(code, tmp_path, JOB, **environment).stdout
    assert "FrameworkFinder" not in run(code, tmp_path, JOB, **environment).stdout


@pytest.mark.parametrize("environment", [{}, {"SALUS_SOCKET": "nowhere"}], ids=["no-socket", "wanted"])
def test_the_shadowed_sitecustomize_runs_as_well(tmp_path: Path, environment: dict[str, str]) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins; builtins.mine = __file__\n")
    result = run("import sitecustomize; print(mine == sitecustomize.__file__)", tmp_path, JOB, own, **environment)
    assert result.stdout == "True\n"


def test_an_error_in_the_shadowed_sitecustomize_is_reported_as_python_does(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("raise RuntimeError('theirs')\n")
    plain = run("print('alive')", tmp_path, own)
    ours = run("print('alive')", tmp_path, JOB, own, SALUS_SOCKET="nowhere")
    assert (ours.stdout, ours.stderr) == (plain.stdout, plain.stderr)
    assert "theirs" in ours.stderr


def test_the_explicit_interface_does_nothing_without_salus(tmp_path: Path) -> None:
    code = "import salus_job\nwith salus_job.iteration(): print(salus_job.declare('2G', ephemeral=5))"
    assert run(code, tmp_path, JOB).stdout == "False\n"
