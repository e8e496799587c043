"""Every package that constraints.txt pins supports the Python of Debian 12, on which newcomers install."""

import re
from importlib import metadata
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[2]
DEBIAN_12_PYTHON = "3.11.2"
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)$", re.MULTILINE)


@pytest.mark.parametrize(("name", "version"), PINNED.findall((ROOT / "constraints.txt").read_text()))
def test_a_pinned_package_runs_on_debians_python(name, version):
    installed = metadata.distribution(name)
    assert installed.version.partition("+")[0] == version, "run make setup"
    wanted = installed.metadata.get("Requires-Python") or ""
    assert DEBIAN_12_PYTHON in SpecifierSet(wanted), f"{name} {version} wants Python {wanted}"
