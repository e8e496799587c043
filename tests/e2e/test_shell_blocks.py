"""The shell commands in README and the guides run, in order, as an ordinary user of a cluster."""

import json
import pwd
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.cluster_fixtures import SLURM_ROOT
from tests.support.lab import wait_for
from tests.support.shell_blocks import BLOCK_KINDS, Block, blocks_of, script_of

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/user-guide.md", "docs/admin-guide.md")

pytestmark = pytest.mark.skipif(SLURM_ROOT is not None, reason="another root file system has no PyTorch")


def run_as_user(cluster, script):
    """Run a script as `salus cluster exec --user games -- bash` would, and return its output with errors mixed in."""
    entry = pwd.getpwnam("games")
    plan = cluster.plan
    environment = {
        "PATH": plan.search_path(), "HOME": str(plan.path("work")), "USER": entry.pw_name, "LANG": "C.UTF-8",
        "PYTHON": cluster.python, "SLURMD_NODENAME": plan.nodes[0], **plan.environment(),
    }  # fmt: skip
    return subprocess.run(
        cluster.command(["bash", "-c", script], entry), env=environment, cwd=plan.path("work"), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240, check=False,
    )  # fmt: skip


def test_every_block_has_a_known_kind():
    for page in PAGES:
        assert {block.kind for block in blocks_of(ROOT / page)} <= BLOCK_KINDS, page


def test_every_shell_block_runs(lab):
    folder = lab.work / "examples"
    if not folder.exists():
        shutil.copytree(ROOT / "examples", folder)
    blocks = [block for page in PAGES for block in blocks_of(ROOT / page) if block.kind == "sh"]
    assert len(blocks) >= 10, "the pages have lost their blocks"
    done = run_as_user(lab.cluster, script_of(blocks))
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("== end\n")
    wait_for(lambda: not lab.ask("squeue", "-h", "-u", "games").strip(), lambda: lab.ask("squeue"), 180)
    # The submitted jobs must have completed too.
    numbers = {line.split()[-1] for line in done.stdout.splitlines() if line.startswith("Submitted batch job")}
    document = json.loads(lab.ask("sacct", "-X", "--json", "-j", ",".join(sorted(numbers))))
    states = {job["job_id"]: job["state"]["current"] for job in document["jobs"]}
    assert set(states.values()) == {"COMPLETED"}, (states, done.stdout)


def test_a_block_that_fails_is_named(lab):
    blocks = [Block("page.md", 3, "sh", "true\n"), Block("page.md", 7, "sh", "make test\nsalus no-such-command\n")]
    done = run_as_user(lab.cluster, script_of(blocks))
    assert done.returncode == 2
    assert "== page.md:7" in done.stdout
    assert "== end" not in done.stdout
