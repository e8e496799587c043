"""Code that runs in a user's process is Python 3.8 and needs only the standard library."""

import ast
import importlib
import re
import sys
from pathlib import Path

import pytest
from salus_job.frameworks import ADAPTORS
from salus_job.frameworks.base import FrameworkAdaptor

JOB = Path(__file__).parents[3] / "nodedaemon" / "job"
MODULES = sorted([JOB / "sitecustomize.py", *(JOB / "salus_job").rglob("*.py")])


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(JOB)))
def test_a_module_is_python_3_8_and_uses_only_the_standard_library(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    foreign = {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) - {"salus_job", "torch"}
    assert foreign == set()


@pytest.mark.parametrize("framework", ADAPTORS)
def test_only_the_hooks_of_an_adaptor_import_its_framework(framework: str) -> None:
    statement = re.compile(rf"^ *(from|import) {framework}\b", re.MULTILINE)
    importers = {str(path.relative_to(JOB)) for path in MODULES if statement.search(path.read_text())}
    assert importers <= {f"salus_job/frameworks/{framework}/hooks.py"}


@pytest.mark.parametrize("framework", ADAPTORS)
def test_every_framework_has_an_adaptor(framework: str) -> None:
    module, name = ADAPTORS[framework]
    assert issubclass(getattr(importlib.import_module(module), name), FrameworkAdaptor)
