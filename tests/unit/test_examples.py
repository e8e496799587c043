"""The examples are what a user would write: plain PyTorch that does not mention Salus."""

import ast
from pathlib import Path

import pytest

# cuda_loop.py takes the place of a framework on the emulator, and calls Salus itself.
EXAMPLES = sorted(path for path in (Path(__file__).parents[2] / "examples").glob("*.py") if path.stem != "cuda_loop")
OURS = {"accounting", "cli", "nodedaemon", "salus_job", "slurm_plugin"}


def imported(tree: ast.Module) -> set[str]:
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names}


def test_there_are_five_examples() -> None:
    assert [path.stem for path in EXAMPLES] == ["cnn", "gan", "inference", "lstm", "transformer"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_plain_pytorch(path: Path) -> None:
    source = path.read_text()
    names = imported(ast.parse(source))
    assert "torch" in names
    assert not names & OURS
    assert '"cuda" if torch.cuda.is_available() else "cpu"' in source
    assert {
        option for option in ("--iterations", "--batch", "--width", "--seed") if f'"{option}"' not in source
    } == set()
