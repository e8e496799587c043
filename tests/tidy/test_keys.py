"""Every key of salus.conf has an effect: some code outside the configuration package reads it."""

import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from nodedaemon.config.keys import Settings
from nodedaemon.config.spec import keys_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("nodedaemon", "slurm_plugin", "accounting", "cli")
#: These modules use settings: one converts them for the core, one compares them. The others only parse and print.
BRIDGES = [ROOT / "nodedaemon" / "config" / name for name in ("limits.py", "check.py")]
GROUPS = [(one.name, one.default_factory) for one in fields(Settings)]
KEYS = [(group, key) for group, make in GROUPS for key in keys_of(make)]


@cache
def sources() -> str:
    config = ROOT / "nodedaemon" / "config"
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if config not in path.parents]
    return "\n".join(path.read_text() for path in [*paths, *BRIDGES])


@pytest.mark.parametrize(("group", "key"), KEYS, ids=[key.name for _, key in KEYS])
def test_a_key_is_read_by_some_code(group, key):
    # A variable that holds a group has its name: `storage = settings.storage`, then `storage.url`.
    assert re.search(rf"\b(?:{group}|settings)\.{key.attribute}\b", sources()), (
        f"{key.name}: nothing reads {group}.{key.attribute}"
    )
