"""What is loaded into a user's process is old Python and needs nothing but the standard library."""

import ast
import sys
from pathlib import Path

import pytest

JOB = Path(__file__).parents[3] / "nodedaemon" / "job"
MODULES = sorted([JOB / "sitecustomize.py", *(JOB / "salus_job").glob("*.py")])


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_module_is_python_3_8_and_standard_library(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    foreign = {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) - {"salus_job", "torch"}
    assert foreign == set()


def test_the_hooks_are_the_only_ones_that_import_torch() -> None:
    importers = {
        path.stem for path in MODULES if "from torch" in path.read_text() or "import torch" in path.read_text()
    }
    assert importers <= {"hooks"}
