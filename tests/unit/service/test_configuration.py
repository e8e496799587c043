"""The active configuration."""

from pathlib import Path

import pytest

from nodedaemon.config import Config, parse
from nodedaemon.service.control.configuration import ActiveConfiguration


def config_of(text: str) -> Config:
    loaded = parse(Path("salus.conf"), f"SingleHost=yes\n{text}\n".encode())
    assert isinstance(loaded, Config), str(loaded)
    return loaded


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("MaxLanes=3", ["MaxLanes"]),
        ("NodeName=n1 Policy=srtf", ["Policy"]),
        ("NodeName=n2 Policy=srtf", []),
        ("DeviceName=h0 Type=host Memory=2G", ["Memory", "Type"]),
        ("MaxLanes=4", []),
    ],
)
def test_a_reload_reports_the_keys_that_change_for_the_node(text: str, changed: list[str]) -> None:
    active = ActiveConfiguration(config_of(""), None, "n1", {})
    assert active.changed_keys(config_of(text)) == changed
