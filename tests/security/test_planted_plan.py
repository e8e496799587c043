"""Another user plants the plan of a private cluster; root runs `salus cluster` on it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from nodedaemon.core.errors import SalusError
from slurm_plugin.cluster.control import prepare_directory
from slurm_plugin.cluster.plan import ClusterPlan
from slurm_plugin.cluster.processes import start_time
from tests.support.attacker import attack
from tests.support.salusd import DEADLINE_S, ROOT

#: Writes the plan argv[2] into the directory argv[1], with the state argv[3] and a program that reports that it ran.
PLANT = """
folder, plan, state = sys.argv[1:]
os.makedirs(folder + "/bin", exist_ok=True)
os.makedirs(folder + "/work", exist_ok=True)
for name, text in (("plan.json", plan), ("state.json", state), ("bin/id", "#!/bin/sh\\ntouch " + folder + "/ran\\n")):
    with open(f"{folder}/{name}", "w") as file:
        file.write(text)
os.chmod(folder + "/bin/id", 0o755)
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory of root that everybody may write to, such as /tmp, with a directory of root in it."""
    folder = Path(tempfile.mkdtemp(prefix="salus-shared-"))
    folder.chmod(0o1777)
    (folder / "precious").mkdir()
    (folder / "precious" / "file").write_text("mine")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of root that nobody may end."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def plan_text(directory: Path) -> str:
    return msgspec.json.encode(ClusterPlan(directory=directory), enc_hook=str).decode()


def plant(folder: Path, directory: Path, bystander: subprocess.Popen[bytes]) -> None:
    named = [bystander.pid, start_time(bystander.pid)]
    attack(PLANT, folder, plan_text(directory), json.dumps({"supervisor": named, "children": {"munged": named}}))


def cluster(*arguments: object, cwd: str | Path = "/", **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "cli.main", "cluster", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        cwd=cwd, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip


def assert_refused(done: subprocess.CompletedProcess[str], shared: Path, bystander: subprocess.Popen[bytes]) -> None:
    assert done.returncode in (1, 2), done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert "refused" in line or "it is the plan of" in line
    assert "--dir" in line or "remove it" in line or "chmod go-w" in line
    assert (shared / "precious" / "file").read_text() == "mine"
    assert not list(shared.glob("**/ran"))
    assert bystander.poll() is None


@pytest.mark.parametrize("arguments", [["down"], ["down", "--keep"], ["status"], ["exec", "id"]])
def test_a_plan_of_another_user_is_refused(arguments, shared, bystander):
    plant(shared / "c", shared / "precious", bystander)
    verb, *rest = arguments
    assert_refused(cluster(verb, "--dir", shared / "c", *rest), shared, bystander)
    assert_refused(cluster(verb, "--dir", ".", *rest, cwd=shared / "c"), shared, bystander)


@pytest.mark.parametrize("verb", ["up", "down"])
def test_the_default_directory_is_refused_if_another_user_made_it(verb, shared, bystander):
    plant(shared / "salus-cluster-0", shared / "precious", bystander)
    assert_refused(cluster(verb, TMPDIR=str(shared)), shared, bystander)
    assert (shared / "salus-cluster-0" / "plan.json").exists()


@pytest.mark.parametrize("verb", ["up", "down"])
def test_a_directory_of_root_that_everybody_may_write_to_is_never_removed(verb, shared, bystander):
    plant(shared, shared, bystander)
    assert_refused(cluster(verb, "--dir", shared), shared, bystander)


def test_a_plan_file_of_another_user_in_a_directory_of_root_is_refused(shared, bystander):
    plant(shared, shared / "precious", bystander)
    (shared / "plan.json").rename(shared / "precious" / "plan.json")
    assert_refused(cluster("down", "--dir", shared / "precious"), shared, bystander)
    (shared / "precious" / "plan.json").unlink()
    # A link or a FIFO in its place is refused too, and blocks nobody.
    (shared / "own.json").write_text(plan_text(shared / "precious"))
    (shared / "precious" / "plan.json").symlink_to(shared / "own.json")
    assert_refused(cluster("down", "--dir", shared / "precious"), shared, bystander)
    (shared / "precious" / "plan.json").unlink()
    os.mkfifo(shared / "precious" / "plan.json")
    assert_refused(cluster("down", "--dir", shared / "precious"), shared, bystander)


def test_a_plan_of_another_directory_is_refused(shared, bystander):
    made = shared / "made"
    made.mkdir()
    (made / "plan.json").write_text(plan_text(shared / "precious"))
    assert_refused(cluster("down", "--dir", made), shared, bystander)


def test_a_symbolic_link_to_a_cluster_is_refused(shared, bystander):
    ClusterPlan(directory=shared / "precious").save()
    (shared / "link").symlink_to(shared / "precious")
    assert_refused(cluster("down", "--dir", shared / "link"), shared, bystander)


def test_a_cluster_below_a_directory_of_another_user_is_refused(shared, bystander):
    attack("os.makedirs(sys.argv[1])", shared / "theirs")
    made = shared / "theirs" / "c"
    made.mkdir()
    ClusterPlan(directory=made).save()
    assert_refused(cluster("down", "--dir", made), shared, bystander)
    with pytest.raises(SalusError, match="may change"):
        prepare_directory(shared / "theirs" / "new")


def test_a_cluster_that_belongs_to_the_caller_is_removed(shared):
    made = shared / "made"
    made.mkdir()
    ClusterPlan(directory=made).save()
    assert cluster("down", "--dir", made).returncode == 0
    assert not made.exists()
