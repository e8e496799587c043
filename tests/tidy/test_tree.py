"""The tree keeps the house rules."""

import pytest

from tests.tidy.rules import RULES, text_of, tracked_files

FILES = [(path, text_of(path)) for path in tracked_files()]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_tree_keeps(rule):
    found = [problem for path, text in FILES for problem in rule(path, text)]
    assert not found, "\n".join([rule.__doc__ or "", *found])


def test_the_tree_is_seen():
    names = {str(path) for path, _ in FILES}
    assert {"Makefile", "cli/main.py", "tests/tidy/test_tree.py"} <= names
    assert not any(name.startswith(".venv") for name in names)
