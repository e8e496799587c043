"""Adding a policy or a key of salus.conf touches only the files that docs/extending.md lists.

Each test makes the addition in a copy of the product code and uses it there.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodedaemon.core.policies import POLICIES

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("nodedaemon", "cli", "accounting", "slurm_plugin")
REGISTRY = "nodedaemon/core/policies/__init__.py"

NEW_POLICY = """
from nodedaemon.core.ordering import Breadth, Policy


class Lifo(Policy):
    breadth = Breadth.ONE

    def key(self, session, now_ns):
        return (-session.arrival_order,)
"""
NEW_KEY = """
    tea_break_ns: int = key("TeaBreak", Time(), 5 * SECOND_NS, NODE, DEVICE).doc(
        "How long a lane rests between two turns."
    )
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("*.c", "*.h", "*.so", "*.o", "__pycache__", "node_modules")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    return tmp_path


def insert_after(path: Path, line: str, text: str) -> None:
    """Insert `text` after the first line of the file that ends with `line`."""
    before, found, after = path.read_text().partition(f"{line}\n")
    assert found, f"{path}: no line {line!r}"
    path.write_text(f"{before}{found}{text}{after}")


def run_in(copy: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(copy), "COLUMNS": "200", "TERM": "dumb"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=copy, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def salus(copy: Path, *arguments: str) -> str:
    return run_in(copy, "-m", "cli.main", "--config-file", "salus.conf", *arguments)


def test_a_sixth_policy_is_one_new_file_and_one_registry_line(copy: Path) -> None:
    (copy / "nodedaemon/core/policies/lifo.py").write_text(NEW_POLICY)
    insert_after(copy / REGISTRY, '    "priority": "priority:Priority",', '    "lifo": "lifo:Lifo",\n')
    names = ", ".join((*POLICIES, "lifo"))

    (copy / "salus.conf").write_text("Policy=lifo\nPartitionName=debug Nodes=n1 Policy=LIFO\n")
    assert "Policy|lifo|" in salus(copy, "config", "show", "-P")
    assert names in salus(copy, "config", "show", "--explain", "Policy")

    simulated = salus(copy, "simulate", "--workload", "switch", "-P")
    assert re.findall(r"^switch\|(\w+)\|", simulated, re.MULTILINE)[: len(POLICIES) + 1] == [*POLICIES, "lifo"]
    assert "switch|lifo|" in salus(copy, "simulate", "--workload", "switch", "--policy", "lifo", "-P")

    for command in (("policy", "set"), ("run",)):
        assert names in re.sub(r"[\s│]+", " ", salus(copy, *command, "--help"))
    assert f"**Policy** ({names};" in run_in(
        copy, "-c", "from nodedaemon.config.document import manual_text; print(manual_text())"
    )


def texts_of(tree: ast.Module) -> Iterator[str]:
    """The strings of each collection, class and literal of a module, without docstrings."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict | ast.ClassDef | ast.Constant):
            parts = [one for one in ast.walk(node) if isinstance(one, ast.Constant) and id(one) not in docstrings]
            yield " ".join(one.value for one in parts if isinstance(one.value, str))


def lists_policies(source: str) -> bool:
    return any(len(set(POLICIES) & set(re.findall(r"[a-z]+", text))) > 2 for text in texts_of(ast.parse(source)))


def test_only_the_registry_lists_the_policies() -> None:
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert [str(path.relative_to(ROOT)) for path in sources if lists_policies(path.read_text())] == [REGISTRY]


@pytest.mark.parametrize(
    "source",
    [
        'HELP = "fifo, srtf or fair"',
        'NAMES = ["fifo", "srtf", "fair"]',
        'class Name(StrEnum):\n    A = "fifo"\n    B = "srtf"\n    C = "fair"',
    ],
)
def test_a_second_list_of_policies_is_found(source: str) -> None:
    assert lists_policies(source)


def test_a_new_key_is_one_declaration_and_its_use(copy: Path) -> None:
    insert_after(copy / "nodedaemon/config/keys.py", '    """Order and fairness"""', NEW_KEY)
    (copy / "salus.conf").write_text(
        "SingleHost=yes\nTeaBreak=2\nNodeName=n1 TeaBreak=3\nDeviceName=host0 Nodes=n2 Type=host Memory=2G TeaBreak=4\n"
    )
    use = (
        "from nodedaemon.config import load_or_raise; config = load_or_raise('salus.conf');"
        "print(*(config.for_node(node).order.tea_break_ns for node in ('n0', 'n1')),"
        "*(device.settings.order.tea_break_ns for device in config.devices_of('n2')))"
    )
    assert run_in(copy, "-c", use).split() == ["2000000000", "3000000000", "4000000000"]
    assert "TeaBreak|3s|NodeName=n1" in salus(copy, "config", "show", "--node", "n1", "-P")

    run_in(copy, "-m", "nodedaemon.config.document", "shipped.conf", "manual.md")
    assert (
        "# How long a lane rests between two turns. [NodeName, DeviceName]\n#TeaBreak=5s\n"
        in (copy / "shipped.conf").read_text()
    )
    assert "**TeaBreak** (time; default `5s`; also in NodeName, DeviceName)" in (copy / "manual.md").read_text()
