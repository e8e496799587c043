"""The pinned packages: each has hashes and runs on Debian 12, on which newcomers install. The demo has all it needs."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
DEBIAN_12_PYTHON = "3.11.2"
PYTHONS = ("3.11", "3.12", "3.13")
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s\\]+)", re.MULTILINE)
#: A line that continues has one backslash at its end; the last hash has none.
ENTRY = re.compile(r"[A-Za-z0-9._-]+==[^\s\\]+( \\\n    --hash=sha256:[0-9a-f]{64})+")


def unhashed(text: str) -> list[str]:
    """The entries that are not a version with hashes."""
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    return [entry for entry in re.split(r"(?<!\\)\n", lines) if not ENTRY.fullmatch(entry)]


@pytest.mark.parametrize(("name", "version"), PINNED.findall(CONSTRAINTS.read_text()))
def test_a_pinned_package_runs_on_debians_python(name, version):
    installed = metadata.distribution(name)
    assert installed.version.partition("+")[0] == version, "run make setup"
    wanted = installed.metadata.get("Requires-Python") or ""
    assert DEBIAN_12_PYTHON in SpecifierSet(wanted), f"{name} {version} wants Python {wanted}"


@pytest.mark.parametrize("path", [CONSTRAINTS, *(ROOT / ".ci").glob("*.txt")], ids=lambda path: path.name)
def test_every_pinned_package_has_hashes(path):
    assert unhashed(path.read_text()) == [], "run python -m tools.constraint_hashes"


@pytest.mark.parametrize(
    "entry",
    [
        "rich==15.0.0",
        "rich>=15 \\\n    --hash=sha256:" + "0" * 64,
        "rich==15.0.0 \\\n    --hash=sha256:" + "0" * 63,
        "rich==15.0.0 \\\n    --hash=md5:" + "0" * 32,
        "rich==15.0.0\n    --hash=sha256:" + "0" * 64,
    ],
)
def test_an_entry_without_a_hash_is_found(entry):
    good = "mdurl==0.1.2 \\\n    --hash=sha256:" + "a" * 64
    assert unhashed(f"# packages\n{good}\n{good}") == []
    assert unhashed(f"{good}\n{entry}\n{good}")


def test_set_up_installs_packages_only_with_hashes():
    commands = [line for line in (ROOT / ".ci" / "setup").read_text().splitlines() if "-r " in line]
    assert len(commands) == 4
    assert all("--require-hashes" in line for line in commands)


def applies(marker: Marker | None, extras: set[str]) -> bool:
    environments = [
        {"extra": extra, "python_version": python, "python_full_version": f"{python}.0"}
        for extra in {"", *extras}
        for python in PYTHONS
    ]
    return marker is None or any(map(marker.evaluate, environments))


def closure(texts: list[str]) -> set[str]:
    """The packages that these requirements need, on any of the Pythons."""
    found, waiting = set(), [Requirement(text) for text in texts]
    while waiting:
        wanted = waiting.pop()
        key = (canonicalize_name(wanted.name), frozenset(wanted.extras))
        if key in found:
            continue
        found.add(key)
        needed = map(Requirement, metadata.distribution(wanted.name).requires or ())
        waiting += [one for one in needed if applies(one.marker, wanted.extras)]
    return {name for name, _ in found}


def test_the_first_part_of_constraints_txt_has_what_the_demo_and_the_build_need():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    optional = project["project"]["optional-dependencies"]
    needed = [*project["project"]["dependencies"], *optional["report"], *optional["torch"]]
    # hatchling needs editables for an editable install, and says so only when it builds one.
    needed += [*project["build-system"]["requires"], "editables"]
    demo, mark, _ = CONSTRAINTS.read_text().partition("# for the tests")
    assert mark
    assert {canonicalize_name(name) for name, _ in PINNED.findall(demo)} == closure(needed)
