"""salus_wire.h and messages.py describe the same bytes: the compiler's offsets against the Python layouts."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

from nodedaemon.wire import messages
from nodedaemon.wire.messages import HEADER, MESSAGE_TYPES, Framework, HelloFlag, Kind, OverrunKind, WelcomeFlag

HEADER_FILE = Path(messages.__file__).with_name("salus_wire.h")

# The struct of each kind; OVERRUN's differs because enum salus_overrun has the name.
STRUCT_NAMES = {kind: f"salus_{kind.name.lower()}" for kind in Kind} | {Kind.OVERRUN: "salus_overrun_ask"}


def _python_offsets(kind: Kind) -> dict[str, tuple[int, int]]:
    offset_bytes = HEADER.size
    offsets = {}
    for name, code in messages.field_codes(MESSAGE_TYPES[kind]):
        size_bytes = struct.calcsize(f"<{code}")
        offsets[name] = (offset_bytes, size_bytes)
        offset_bytes += size_bytes
    return offsets


def _constants() -> dict[str, int]:
    constants = {
        "SALUS_WIRE_MAGIC": messages.MAGIC,
        "SALUS_WIRE_VERSION": messages.VERSION,
        "SALUS_TEXT_BYTES": messages.TEXT_BYTES,
        "SALUS_RULE_BYTES": messages.RULE_BYTES,
        "SALUS_DEVICE_BYTES": messages.DEVICE_BYTES,
        "SALUS_FRAME_MAX": messages.FRAME_BYTES_MAX,
        "SALUS_FDS_MAX": messages.FDS_MAX,
    }
    constants |= {f"SALUS_{kind.name}": kind for kind in Kind}
    constants |= {f"SALUS_FRAMEWORK_{framework.name}": framework for framework in Framework}
    constants |= {f"SALUS_HELLO_{flag.name}": flag for flag in HelloFlag}
    constants |= {f"SALUS_WELCOME_{flag.name}": flag for flag in WelcomeFlag}
    constants |= {f"SALUS_OVERRUN_{what.name}": what for what in OverrunKind}
    return constants


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """What the compiler says, by expression."""
    expressions = list(_constants())
    expressions += [f"sizeof(struct {name})" for name in STRUCT_NAMES.values()]
    for kind, name in STRUCT_NAMES.items():
        for field in _python_offsets(kind):
            expressions.append(f"offsetof(struct {name}, {field})")
            expressions.append(f"sizeof(((struct {name} *)0)->{field})")
    expressions += ["sizeof(struct salus_gate_page) <= SALUS_PAGE_BYTES", "sizeof(struct salus_turn_page)"]
    expressions += [f"offsetof(struct salus_gate_page, {word})" for word in ("lease", "state", "iteration_count")]
    lines = "\n".join(f'    printf("%llu\\n", (unsigned long long)({expression}));' for expression in expressions)
    directory = tmp_path_factory.mktemp("parity")
    source = directory / "parity.c"
    includes = f'#include <stddef.h>\n#include <stdio.h>\n#include "{HEADER_FILE}"\n'
    source.write_text(f"{includes}int main(void)\n{{\n{lines}\n    return 0;\n}}\n")
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wpadded"]
    subprocess.run(["gcc", *flags, "-o", directory / "parity", source], check=True)
    output = subprocess.run([directory / "parity"], check=True, capture_output=True, text=True).stdout
    return dict(zip(expressions, map(int, output.split()), strict=True))


def test_constants_of_header_and_messages_are_equal(compiled: dict[str, int]) -> None:
    assert {name: compiled[name] for name in _constants()} == _constants()


@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.name)
def test_each_field_lies_at_the_same_offset_in_c_and_python(compiled: dict[str, int], kind: Kind) -> None:
    name = STRUCT_NAMES[kind]
    compiled_offsets = {
        field: (compiled[f"offsetof(struct {name}, {field})"], compiled[f"sizeof(((struct {name} *)0)->{field})"])
        for field in _python_offsets(kind)
    }
    assert compiled_offsets == _python_offsets(kind)
    assert compiled[f"sizeof(struct {name})"] == messages.layout(MESSAGE_TYPES[kind]).size
    assert messages.layout(MESSAGE_TYPES[kind]).size <= messages.FRAME_BYTES_MAX


def test_pages_fit_a_page_and_their_writers_have_cache_lines_of_their_own(compiled: dict[str, int]) -> None:
    assert compiled["sizeof(struct salus_gate_page) <= SALUS_PAGE_BYTES"] == 1
    assert compiled["sizeof(struct salus_turn_page)"] == 4096
    offsets = [compiled[f"offsetof(struct salus_gate_page, {word})"] for word in ("lease", "state", "iteration_count")]
    assert offsets == [64, 128, 192]
