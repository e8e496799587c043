"""Every program, command, key and refused word is documented."""

import re
import tomllib

import pytest

from cli.manual import PROGRAMS, manual_text
from nodedaemon.config.records import KEYS
from tests.tidy.rules import NEVER_WORDS, ROOT

SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


def missing_pages(scripts: dict[str, str]) -> list[str]:
    """Console scripts without a manual page, and those of cli that are not in the list of generated pages."""
    generated = {program.name for program in PROGRAMS}
    problems = [f"{name}: no docs/man/{name}.md" for name in scripts if not (ROOT / f"docs/man/{name}.md").is_file()]
    problems += [
        f"{name}: add it to PROGRAMS in cli/manual.py"
        for name, target in scripts.items()
        if target.startswith("cli.") and name not in generated
    ]
    return problems


def undocumented_keys(names: list[str], template: str, manual: str) -> list[str]:
    """Keys that the shipped file or the manual does not mention."""
    return [name for name in names if f"#{name}=" not in template or f"**{name}**" not in manual]


def missing_words(words: set[str], glossary: str) -> set[str]:
    """Words that the core may not use, but that the glossary does not list as refused."""
    table = [line for line in glossary.splitlines() if line.startswith("|")]
    refused = " ".join(line.split("|")[3] for line in table if line.count("|") >= 4)
    return words - set(re.findall(r"[a-z]+", refused))


def test_every_program_has_a_page():
    assert missing_pages(SCRIPTS) == []


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_every_command_is_in_its_page(program):
    page = (ROOT / f"docs/man/{program.name}.md").read_text()
    assert page == manual_text(program), f"docs/man/{program.name}.md is stale; run make man"
    for entry in re.split(r"^### ", page, flags=re.MULTILINE)[1:]:
        name, _, rest = entry.partition("\n")
        description = rest.split("\n\n")[1:2]
        assert description, f"{name}: the command has no docstring"
        assert description[0].strip(), f"{name}: the command has no docstring"


def test_every_key_is_in_the_shipped_file_and_in_the_manual():
    template, manual = (ROOT / "etc/salus.conf").read_text(), (ROOT / "docs/man/salus.conf.md").read_text()
    assert undocumented_keys([key.name for key in KEYS], template, manual) == []


def test_every_refused_word_is_in_the_glossary():
    assert missing_words(set(NEVER_WORDS), (ROOT / "docs/glossary.md").read_text()) == set()


def test_the_checks_can_fail():
    assert missing_pages({"nope": "cli.nope:main"}) == [
        "nope: no docs/man/nope.md",
        "nope: add it to PROGRAMS in cli/manual.py",
    ]
    assert undocumented_keys(["NoSuchKey"], "", "") == ["NoSuchKey"]
    assert missing_words({"slot", "zzz"}, "| lane | a slice | slot, queue |\n") == {"zzz"}
