"""The adaptor gets into a process and stays out of its way; a stand-in for torch shows when it is attached."""

import subprocess
import sys
from pathlib import Path

import pytest

JOB = Path(__file__).parents[3] / "nodedaemon" / "job"
# A package of that name that our attach cannot use: what is tested is the way in, not the hooks.
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


def test_a_process_that_never_imports_torch_pays_for_one_finder(tmp_path: Path) -> None:
    code = (
        "import sys; print(type(sys.meta_path[0]).__name__, 'salus_job.watch' in sys.modules, 'ctypes' in sys.modules)"
    )
    result = run(code, tmp_path, JOB, SALUS_SOCKET="nowhere")
    assert result.stdout.split() == ["FrameworkFinder", "False", "False"]
    assert result.stderr == ""


def test_what_fails_of_ours_is_one_line_and_the_job_goes_on(tmp_path: Path) -> None:
    result = run("import torch; print(torch.loaded)", tmp_path, JOB, SALUS_SOCKET="nowhere")
    assert result.stdout == "True\n"
    assert result.returncode == 0
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith("; the job goes on without Salus\n")


@pytest.mark.parametrize(
    "environment", [{}, {"SALUS_SOCKET": "nowhere", "SALUS_DISABLE": "1"}], ids=["no-socket", "off"]
)
def test_nothing_is_installed_where_salus_is_not_wanted(tmp_path: Path, environment: dict[str, str]) -> None:
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
