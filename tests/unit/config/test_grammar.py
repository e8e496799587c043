"""The syntax of slurm.conf: comments, continuation, quotes, records, Include."""

import os
from pathlib import Path

import pytest

from nodedaemon.config import Config, Rejected, UnreadableError, load, parse
from nodedaemon.config.grammar import FILE_BYTES_MAX, FILE_COUNT_MAX
from nodedaemon.core.errors import RequestError

TOP = Path("/conf/salus.conf")


def _parse(text: str | bytes, **files: str):
    def read(path: Path) -> bytes:
        name = os.path.normpath(path).removeprefix("/conf/")
        if name not in files:
            raise FileNotFoundError(2, "No such file or directory")
        return files[name].encode()

    return parse(TOP, text if isinstance(text, bytes) else text.encode(), read)


def _findings(text: str | bytes, **files: str) -> list[str]:
    loaded = _parse(text, **files)
    assert isinstance(loaded, Rejected), loaded
    return [str(finding).removeprefix("/conf/").replace(" /conf/", " ") for finding in loaded.findings]


def _values(text: str, **files: str) -> dict[str, object]:
    loaded = _parse(text, **files)
    assert isinstance(loaded, Config), str(loaded)
    return {name: value.value for name, value in loaded.values.items()}


def test_keys_are_case_insensitive_and_comments_end_lines():
    assert _values("# nothing\n\n  lanereserve=2G # why\nSHARDUNIT = 32M\r\n") == {
        "LaneReserve": 2 << 30,
        "ShardUnit": 32 << 20,
    }


def test_several_settings_may_share_a_line_and_values_may_be_quoted():
    assert _values('ClusterName="my lab" MaxLanes=2 Operators=\nHighQOS= MaxOvertakes=7') == {
        "ClusterName": "my lab",
        "MaxLanes": 2,
        "Operators": (),
        "HighQOS": (),
        "MaxOvertakes": 7,
    }


def test_a_backslash_or_quotes_keep_a_hash():
    assert _values("ClusterName=a\\#b")["ClusterName"] == "a#b"
    assert _values('ClusterName="a # b" # c')["ClusterName"] == "a # b"


def test_a_backslash_joins_lines_and_line_numbers_stay_right():
    loaded = _parse("NodeName=gpu1 \\\n  Policy=srtf \\\n  MaxLanes=2\nMaxLanes=3\n")
    assert isinstance(loaded, Config)
    record = loaded.records[0]
    assert {name: value.place.line for name, value in record.values.items()} == {"Policy": 2, "MaxLanes": 3}
    assert loaded.values["MaxLanes"].place.line == 4


def test_a_backslash_in_a_comment_is_ignored_and_one_at_the_end_of_the_file_is_harmless():
    assert _values("# a \\\nMaxLanes=3 \\") == {"MaxLanes": 3}


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("Nonsense\n", "salus.conf:1: 'Nonsense' is not Key=Value; quote text with spaces"),
        ("MaxLanes=1 =2\n", "salus.conf:1: '=2' is not Key=Value; quote text with spaces"),
        ('ClusterName="open\n', "salus.conf:1: 'ClusterName=\"open' is not Key=Value; quote text with spaces"),
        ("\n\nMaxLane=1\n", "salus.conf:3: MaxLane: unknown key; did you mean MaxLanes?"),
        ("Zzzz=1\n", "salus.conf:1: Zzzz: unknown key"),
        ("MaxLanes=1\nmaxlanes=2", "salus.conf:2: MaxLanes: is set twice; first at salus.conf:1"),
        ("MaxLanes=x\nmaxlanes=2", "salus.conf:2: MaxLanes: is set twice; first at salus.conf:1"),
        ("MaxLanes=1 NodeName=a", "salus.conf:1: NodeName: starts a record and must be first on its line"),
        ("Cores=1", "salus.conf:1: Cores: is valid only in a DeviceName record"),
        (
            "NodeName=a ShardUnit=1M",
            "salus.conf:1: ShardUnit: cannot be set in this record; give it a line of its own",
        ),
        ("NodeName=a[2-1]", "salus.conf:1: NodeName: 'a[2-1]': the range 2-1 runs backwards"),
        (
            "NodeName=DEFAULT MaxLanes=1",
            "salus.conf:1: NodeName: 'DEFAULT': DEFAULT is not supported; give the keys lines of their own",
        ),
        ("NodeName=", "salus.conf:1: NodeName: '': has no value; expected a name"),
        ("PartitionName=", "salus.conf:1: PartitionName: '': has no value; expected a name"),
        (b"MaxLanes=\xff\n", "salus.conf:1: is not UTF-8; save the file in that encoding"),
        ("Include\n", "salus.conf:1: Include: names no file"),
        ("Include a\0b\n", "salus.conf:1: Include: names no file"),
        ("Include gone.conf\n", "salus.conf:1: Include: gone.conf cannot be read: No such file or directory"),
        (
            "Include %c.conf\nClusterName=a",
            "salus.conf:1: Include: uses %c before ClusterName is set; set it above this line",
        ),
        ("DeviceName=d", "salus.conf:1: Type: is missing in the record of d"),
    ],
)
def test_a_mistake_is_a_finding_with_its_line(text, finding):
    assert finding in _findings(text)


def test_every_finding_is_reported_at_once_in_the_order_of_lines():
    found = _findings(
        "MaxLane=1\nShardUnit=1s\nPolicy=x\nMaxLanes=1 MaxLanes=2\nLaneReserve=1G\nDeviceName=d Typ=host\n"
    )
    assert [line.split(":")[1] for line in found] == ["1", "2", "3", "4", "6"]


def test_include_is_relative_to_its_file_and_replaces_percent_c_with_the_cluster():
    files = {"nodes/lab.conf": "Include more.conf\nMaxLanes=2\n", "nodes/more.conf": "MaxOvertakes=5\n"}
    loaded = _parse("ClusterName=lab\ninclude nodes/%c.conf\n", **files)
    assert isinstance(loaded, Config)
    assert str(loaded.values["MaxOvertakes"].place) == "/conf/nodes/more.conf:1"
    assert loaded.settings.lanes.lanes_max == 2
    assert len(loaded.files) == 3


def test_include_loops_are_found():
    loop = {"a.conf": "Include b.conf\n", "b.conf": "MaxLanes=1\nInclude ../conf/a.conf\n"}
    assert _findings("Include a.conf\n", **loop) == [
        "b.conf:2: Include: ../conf/a.conf includes itself through this line",
    ]


def test_include_depth_and_count_are_bounded():
    chain = {f"{number}.conf": f"Include {number + 1}.conf\n" for number in range(100)}
    assert "files include each other more than 16 deep" in _findings("Include 0.conf\n", **chain)[0]
    wide = "".join("Include empty.conf\n" for _ in range(FILE_COUNT_MAX))
    assert f"more than {FILE_COUNT_MAX} files are read" in _findings(wide, **{"empty.conf": ""})[0]


def test_too_many_findings_end_with_a_line_that_says_so():
    found = _findings("Nonsense\n" * 5000)
    assert len(found) <= 1001
    assert "too many findings" in found[-1]


def test_a_symlink_to_the_including_file_is_a_loop(tmp_path):
    top = tmp_path / "salus.conf"
    top.write_text("Include link.conf\n")
    (tmp_path / "link.conf").symlink_to(top)
    loaded = load(top)
    assert isinstance(loaded, Rejected)
    assert "includes itself" in str(loaded)


@pytest.mark.parametrize("kind", ["missing", "directory", "pipe", "large", "name"])
def test_a_file_that_cannot_be_read_is_a_one_line_error(tmp_path, kind):
    path = tmp_path / "salus.conf"
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "large":
        path.write_bytes(b"\n" * (FILE_BYTES_MAX + 1))
    elif kind == "name":
        path = Path("a\0b")
    with pytest.raises(UnreadableError) as raised:
        load(path)
    assert isinstance(raised.value, RequestError)
    assert "\n" not in str(raised.value)


def test_names_over_all_records_are_bounded():
    text = "SingleHost=yes\n" + "".join(f"NodeName=r{number}n[0-65000]\n" for number in range(4))
    assert _findings(text)[0].endswith("more than 131072 names in all records")


def test_a_line_of_prose_has_a_bounded_number_of_findings():
    assert len(_findings("this is a comment whose sign was lost in an editor\n")) == 5
