"""The shipped salus.conf and its manual page match the dataclasses."""

from pathlib import Path

import pytest

from nodedaemon.config import Config, parse
from nodedaemon.config.document import main, manual_text, template_text
from nodedaemon.config.effective import (
    changed_keys,
    find_key,
    key_names,
    values_in_effect,
    values_of_node,
    values_of_partition,
)
from nodedaemon.config.records import KEYS
from nodedaemon.config.spec import Scope

ROOT = Path(__file__).parents[3]


def test_the_files_in_the_tree_are_the_generated_ones(tmp_path):
    main(str(tmp_path / "template"), str(tmp_path / "manual"))
    for written, shipped in (("template", "etc/salus.conf"), ("manual", "docs/man/salus.conf.md")):
        assert (tmp_path / written).read_text() == (ROOT / shipped).read_text(), f"{shipped}: stale; run make man"


def test_every_key_is_in_both_with_its_default_and_description():
    template, manual = template_text(), manual_text()
    prose = template.replace("\n# ", " ")
    for key in KEYS:
        assert key.description in prose
        assert f"\n#{key.name}={key.default_text()}\n" in template
        assert f"**{key.name}**" in manual


def test_the_shipped_file_without_its_comment_signs_sets_every_key_to_its_default():
    lines = [line for line in template_text().splitlines() if line.startswith("#") and "=" in line.split(" ")[0]]
    active = "\n".join(line[1:] for line in lines if not line[1:].startswith(tuple(Scope)))
    loaded = parse(Path("salus.conf"), active.encode())
    assert isinstance(loaded, Config), str(loaded)
    assert loaded.settings == Config().settings
    assert len(loaded.values) == len(KEYS)


def test_the_examples_of_records_in_the_shipped_file_are_valid():
    lines = [line[1:] for line in template_text().splitlines() if line[1:].startswith(tuple(Scope))]
    loaded = parse(Path("salus.conf"), "\n".join([*lines, "SingleHost=yes"]).encode())
    assert isinstance(loaded, Config), str(loaded)
    assert len(loaded.records) == 4


def test_names_of_keys_are_unique_and_descriptions_are_short_sentences():
    names = [key.name.casefold() for key in KEYS]
    assert len(set(names)) == len(names)
    assert all(key.description.endswith(".") and len(key.description) <= 120 for key in KEYS)


@pytest.fixture
def config() -> Config:
    text = "MaxLanes=3\nPartitionName=p UnknownJob=refuse\nNodeName=n1 MaxLanes=2\nDeviceName=h Type=host Memory=1G\n"
    loaded = parse(Path("c"), text.encode())
    assert isinstance(loaded, Config)
    return loaded


def test_effective_values_have_their_origin(config):
    values = {(value.record, value.key): (value.value, value.origin) for value in values_in_effect(config)}
    assert values["", "MaxLanes"] == ("3", "c:1")
    assert values["", "Policy"] == ("fair", "default")
    assert values["NodeName=n1", "MaxLanes"] == ("2", "c:3")
    assert values["DeviceName=h", "Memory"] == ("1G", "c:4")
    assert len(values) == len(KEYS) + 4


def test_effective_values_of_a_node_and_a_partition(config):
    node = {(value.record, value.key): (value.value, value.origin) for value in values_of_node(config, "n1")}
    assert node["NodeName=n1", "MaxLanes"] == ("2", "c:3")
    assert node["DeviceName=h", "Type"] == ("host", "c:4")
    partition = {value.key: (value.value, value.origin) for value in values_of_partition(config, "p")}
    assert partition["UnknownJob"] == ("refuse", "c:2")
    assert partition["MaxLanes"] == ("3", "c:1")


def test_keys_are_found_in_any_case():
    assert find_key("lanereserve").name == "LaneReserve"
    assert find_key("CORES").name == "Cores"
    assert find_key("nope") is None
    assert {"LaneReserve", "Cores"} <= set(key_names())


def test_changed_keys_are_those_of_the_node_and_its_devices(config):
    text = "MaxLanes=3\nNodeName=n1 MaxLanes=1 LogFile=/a\nDeviceName=h Type=host Memory=2G\n"
    new = parse(Path("c"), text.encode())
    assert isinstance(new, Config)
    assert changed_keys(config, new, "n1") == ["LogFile", "MaxLanes", "Memory"]
    assert changed_keys(config, new, "n2") == ["Memory"]
    assert changed_keys(config, config, "n1") == []
