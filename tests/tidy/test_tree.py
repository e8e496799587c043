"""The tree keeps the house rules."""

import pytest

from tests.tidy.rules import RULES, double_class_names, text_of, tracked_files

FILES = [(path, text_of(path)) for path in tracked_files()]


def problems(rule):
    if rule is double_class_names:
        return list(rule(FILES))
    return [problem for path, text in FILES for problem in rule(path, text)]


@pytest.mark.parametrize("rule", [*RULES, double_class_names], ids=lambda rule: rule.__name__)
def test_the_tree_keeps(rule):
    found = problems(rule)
    assert not found, "\n".join([rule.__doc__ or "", *found])


def test_the_rules_are_applied_to_the_files_of_the_repository():
    names = {str(path) for path, _ in FILES}
    assert {"Makefile", "cli/main.py", "tests/tidy/test_tree.py"} <= names
    assert not any(name.startswith(".venv") for name in names)
