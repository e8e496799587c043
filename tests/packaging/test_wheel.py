"""The wheel in an environment of its own, away from the checkout: it installs, and it contains everything it needs."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NATIVE = (
    "nodedaemon/job/libsalus/libsalus.so",
    "nodedaemon/job/libsalus/libsalus-preload.so",
    "nodedaemon/job/libsalus/cuda/libcuda.so.1",
    "slurm_plugin/spank/salus_spank.so",
)
DATA = (
    "slurm_plugin/lua/job_submit.lua",
    "slurm_plugin/hooks/prolog.py",
    "slurm_plugin/hooks/epilog.py",
    "slurm_plugin/hooks/hook.py",
    "cli/acct/page/page.html.j2",
    "accounting/_migrations/env.py",
    "accounting/_migrations/versions/0001_create_schema.py",
    "nodedaemon/sim/data/paper.toml",
    "nodedaemon/job/sitecustomize.py",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("salus-*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin directory of a fresh environment. The dependencies of Salus come from the environment of the tests."""
    home = tmp_path_factory.mktemp("installed") / "env"
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index"]
    done = subprocess.run([*pip, str(wheel)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    library = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    # A path from a .pth file comes last, and .pth files in it are not read, so the checkout is not on the path.
    (library / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


def run(installed: Path, folder: Path, *argv: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SALUS"))}
    # Otherwise --show-completion prefers the shell that it runs in to the one that is named.
    environment["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = "1"
    done = subprocess.run(
        [str(installed / argv[0]), *argv[1:]], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout


def test_the_wheel_contains_native_libraries_and_data_and_names_its_platform(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert set(NATIVE) | set(DATA) <= names
    assert "-py3-none-linux_" in wheel.name
    packages = {"slurm_plugin", "nodedaemon", "accounting", "cli"}
    assert {name.partition("/")[0] for name in names if not name.startswith("salus-")} == packages
    shared = {name.partition(".data/data/")[2] for name in names if ".data/data/" in name}
    assert {
        "share/salus/salus.conf",
        "share/salus/systemd/salusd.service",
        "share/salus/slurm/salus-prolog.example",
    } <= shared


def test_the_programs_run_from_another_directory(installed: Path, tmp_path: Path) -> None:
    place = run(installed, tmp_path, "python", "-c", "import cli, slurm_plugin.cluster.files as f; print(cli.__file__)")
    assert Path(place.strip()).is_relative_to(installed.parent)
    for program in ("salus", "salus-acct", "salusd", "salus-admitd"):
        assert "usage" in run(installed, tmp_path, program, "--help").lower()
    config = installed.parent / "share" / "salus" / "salus.conf"
    run(installed, tmp_path, "salus", "config", "check", str(config))
    assert "srtf" in run(installed, tmp_path, "salus", "simulate", "--workload", "switch", "--policy", "fifo,srtf")
    own = tmp_path / "own.conf"
    own.write_text(f"ClusterName=here\nSingleHost=yes\nStorageUrl=sqlite:///{tmp_path}/salus.db\n")
    assert "schema 00" in run(installed, tmp_path, "salus-acct", "-f", str(own), "db", "upgrade")
    assert ": ok" in run(installed, tmp_path, "salus-acct", "-f", str(own), "db", "check")


def test_the_native_libraries_load_from_the_installed_wheel(installed: Path, tmp_path: Path) -> None:
    script = (
        "import ctypes; from pathlib import Path; import nodedaemon.job as job; "
        "ctypes.CDLL(str(Path(list(job.__path__)[0]) / 'libsalus' / 'libsalus.so')); "
        "from slurm_plugin.cluster import files; print(files.SPANK_LIBRARIES[0].is_file())"
    )
    assert run(installed, tmp_path, "python", "-c", script).strip() == "True"


@pytest.mark.parametrize(("program", "shell"), [("salus", "zsh"), ("salus-acct", "fish")])
def test_each_shell_has_a_completion(installed: Path, tmp_path: Path, program: str, shell: str) -> None:
    assert program in run(installed, tmp_path, program, "--show-completion", shell)


def test_bash_completes_the_commands_of_both_programs(installed: Path, tmp_path: Path) -> None:
    for program, begun, wanted in (("salus", "prof", "profiles"), ("salus-acct", "rep", "report")):
        script = tmp_path / f"{program}.bash"
        script.write_text(run(installed, tmp_path, program, "--show-completion", "bash"))
        function = f"_{program.replace('-', '_')}_completion"
        setting = f"COMP_WORDS=({program} {begun}); COMP_CWORD=1"
        lines = f'PATH="{installed}:$PATH"; . {script}; {setting}; {function} {program}; echo "${{COMPREPLY[@]}}"'
        shown = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, check=True)
        assert shown.stdout.split() == [wanted]
