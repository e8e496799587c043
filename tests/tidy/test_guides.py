"""The walk in docs/architecture.md names code that exists; docs/extending.md lists every file that a change touches."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from nodedaemon.wire.messages import MessageKind
from tests.tidy.rules import ROOT

PRODUCT = ("accounting", "cli", "emulator", "etc", "nodedaemon", "slurm_plugin")
#: `path`: `name`, where name is a function, a class or Class.method.
STEP = re.compile(r"`(?P<path>[\w./-]+\.(?:py|c|h|lua))`: `(?P<name>[\w.]+)`")
SECTION = re.compile(r"^## (?P<title>Add .+?)\n(?P<text>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
#: The pattern of an existing example of the kind, so that the test can find where it occurs.
EXAMPLE = re.compile(r"<!-- example: (?P<pattern>.+?) -->")
LISTED = re.compile(r"^\| `(?P<path>[^`]+)` \|", re.MULTILINE)


def python_names(text: str) -> set[str]:
    """Functions, classes and Class.method of a module."""
    names = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}.{one.name}"
                for one in node.body
                if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return names


def is_defined(path: Path, name: str) -> bool:
    """Whether the file defines the name, in Python, C or Lua."""
    if not path.is_file():
        return False
    text = path.read_text()
    if path.suffix == ".py":
        return name in python_names(text)
    opening = r"function\s+" if path.suffix == ".lua" else r"^[a-zA-Z_][\w \*]*[ \*]"
    return re.search(rf"{opening}{re.escape(name)}\s*\(", text, re.MULTILINE) is not None


def missing_steps(page: str) -> list[str]:
    """Steps of the walk that name code which does not exist."""
    return [
        f"{step['path']}: no {step['name']}"
        for step in STEP.finditer(page)
        if not is_defined(ROOT / step["path"], step["name"])
    ]


def test_every_step_of_the_walk_is_in_the_code():
    page = (ROOT / "docs/architecture.md").read_text()
    assert len(STEP.findall(page)) >= 20, "docs/architecture.md lost its walk"
    assert missing_steps(page) == []


def test_a_step_that_moved_is_found():
    assert missing_steps("| `nodedaemon/core/engine.py`: `Engine.handle` |") == []
    assert missing_steps("| `nodedaemon/core/engine.py`: `Engine.no_such` |") == [
        "nodedaemon/core/engine.py: no Engine.no_such"
    ]


def files_with(pattern: str) -> set[str]:
    """Product files that mention the example of a section."""
    found = subprocess.run(
        ["git", "grep", "-lP", pattern, "--", *PRODUCT], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return set(found.stdout.split())


def sections(page: str) -> dict[str, str]:
    return {match["title"]: match["text"] for match in SECTION.finditer(page)}


def listed_files(text: str) -> set[str]:
    return {match["path"] for match in LISTED.finditer(text)}


GUIDE = (ROOT / "docs/extending.md").read_text()


def test_the_guide_has_every_kind_of_extension():
    wanted = {"policy", "salus.conf key", "device", "framework", "wire message", "report column", "CUDA call"}
    assert {title.partition("Add a ")[2] for title in sections(GUIDE)} == wanted


@pytest.mark.parametrize("title", sections(GUIDE))
def test_every_file_that_mentions_the_example_is_listed(title):
    """The list of files is complete: it contains every file that mentions an existing example."""
    text = sections(GUIDE)[title]
    example = EXAMPLE.search(text)
    assert example is not None, f"{title}: name an example"
    mentioned = files_with(example["pattern"])
    assert mentioned, f"{title}: nothing mentions {example['pattern']}"
    listed = listed_files(text)
    assert mentioned - listed == set(), f"{title}: docs/extending.md does not list these files"
    for path in listed:
        assert (ROOT / path).exists(), f"{title}: {path} does not exist"


def test_a_forgotten_file_is_found():
    text = "<!-- example: x -->\n| `nodedaemon/core/engine.py` | the engine |\n"
    assert listed_files(text) == {"nodedaemon/core/engine.py"}
    assert files_with(r"\bclass Engine\b") - listed_files(text) == set()
    assert files_with(r"\bGrantReturned\b") - listed_files(text) != set()


#: Frames that `SessionFrames` handles itself, because their sender has no session yet, or that only jobs receive.
WITHOUT_HANDLER = {"HELLO", "NOTICE"}


def message_gaps(protocol: str, assembly: str) -> set[str]:
    """Kinds of frames without a row in the protocol, or that sessions send and no handler receives."""
    senders = dict(re.findall(r"^\| (\w+) \| (session|salusd|both) \|", protocol, re.MULTILINE))
    gaps = {f"{kind.name}: not in docs/protocol.md" for kind in MessageKind if kind.name not in senders}
    for kind in MessageKind:
        name = "".join(part.capitalize() for part in kind.name.split("_"))
        is_received = senders.get(kind.name) in ("session", "both") and kind.name not in WITHOUT_HANDLER
        if is_received and f"messages.{name}:" not in assembly:
            gaps.add(f"{kind.name}: no handler")
    return gaps


def test_every_frame_is_in_the_protocol_and_has_a_handler():
    protocol = (ROOT / "docs/protocol.md").read_text()
    assembly = (ROOT / "nodedaemon/service/assembly.py").read_text()
    assert message_gaps(protocol, assembly) == set()
    assert message_gaps(protocol.replace("| OVERRUN |", "| X |"), assembly) == {"OVERRUN: not in docs/protocol.md"}
    assert message_gaps(protocol, assembly.replace("messages.Overrun:", "")) == {"OVERRUN: no handler"}
