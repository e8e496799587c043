"""Generates the Python side of the C headers: frames, shared pages, and the interface of libsalus.

Python modules and C headers cannot differ: tests/unit/wire generates the modules again and compares them. The
headers keep to a small subset of C that this parser reads: `#define` with a number, `enum`, `struct` of fixed-width
integers, and prototypes marked SALUS_API. Padding must be declared: a field off its natural alignment is an error.

    python -m tools.layouts
"""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]
WIRE = "nodedaemon/wire/salus_wire.h"
PAGES = "nodedaemon/wire/salus_pages.h"
LIBSALUS = "nodedaemon/job/libsalus/salus.h"
LIBSALUS_CUDA = "nodedaemon/job/libsalus/cuda_lane.h"

CODES = {"uint8_t": "B", "uint16_t": "H", "uint32_t": "I", "uint64_t": "Q", "int64_t": "q"}
CTYPES = {"int": "c_int", "long": "c_long", "char": "c_char"} | {
    name: f"c_{name.removesuffix('_t')}" for name in (*CODES, "int64_t")
}
LINE_COLUMNS = 120
# The constants of salus_wire.h that the adaptor in a job uses.
JOB_CONSTANTS = {"SALUS_MAGIC", "SALUS_WIRE_VERSION", "SALUS_TEXT_BYTES", "SALUS_RULE_BYTES"}
NOTE = "Written by tools/layouts.py from {source}: change the C side, then run `make layouts`."


@dataclass(frozen=True)
class CField:
    c_type: str  # without pointers
    name: str
    count: int | None  # of an array
    is_pointer: bool


@dataclass(frozen=True)
class CBlock:
    """A struct or an enum."""

    name: str
    comment: str
    fields: list[CField] = field(default_factory=list)
    members: dict[str, int] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return "".join(part.capitalize() for part in self.name.removeprefix("salus_").split("_"))


@dataclass
class CHeader:
    constants: dict[str, int]
    enums: list[CBlock]
    structs: list[CBlock]
    prototypes: list[tuple[str, str, list[str]]]  # name, result, arguments


def parse(*paths: str) -> CHeader:
    """The declarations of these headers, in their order."""
    text = "\n".join((ROOT / path).read_text() for path in paths)
    constants = {
        name: int(value.rstrip("u"), 0)
        for name, value in re.findall(r"^#define (SALUS_\w+) +(\w+)", text, re.MULTILINE)
        if value[0].isdigit()
    }
    header = CHeader(constants, [], [], [])
    for comment, keyword, name, body in re.findall(
        r"(?:/\*((?:(?!\*/).)*)\*/\n)?(struct|enum) (salus_\w+) \{\n(.*?)\n\};", text, re.DOTALL
    ):
        sentences = " ".join(line.strip(" *") for line in comment.splitlines()).strip()
        if keyword == "enum":
            header.enums.append(CBlock(name, sentences, members=dict(_members(_without_comments(body)))))
        else:
            header.structs.append(CBlock(name, sentences, fields=list(_fields(_without_comments(body), constants))))
    for result, name, arguments in re.findall(r"^SALUS_API ([^;{]*?)\b(salus_\w+)\(([^;]*?)\);", text, re.MULTILINE):
        parts = [part for part in " ".join(arguments.split()).split(", ") if part != "void"]
        header.prototypes.append((name, result.strip(), parts))
    return header


def _without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def _members(body: str) -> Iterator[tuple[str, int]]:
    for entry in filter(None, (part.strip() for part in body.split(","))):
        found = re.fullmatch(r"(SALUS_\w+)\s*=\s*(\d+)", entry)
        if found is None:
            raise ValueError(f"enum: {entry}: give each member a number")
        yield found.group(1), int(found.group(2))


def _fields(body: str, constants: dict[str, int]) -> Iterator[CField]:
    for declaration in body.split(";"):
        words = " ".join(declaration.split())
        if function := re.search(r"\(\*(\w+)\)\(", words):
            yield CField("void", function.group(1), None, is_pointer=True)
        elif words:
            kind, names = re.fullmatch(r"((?:struct )?\w+) (.*)", words).groups()  # type: ignore[union-attr]
            for name in names.split(", "):
                bare, _, length = name.strip("*]").partition("[")
                count = None if not length else constants[length] if length in constants else int(length)
                yield CField(kind.removeprefix("struct "), bare, count, name.startswith("*"))


def offsets(block: CBlock, structs: dict[str, CBlock]) -> tuple[dict[str, int], int]:
    """The offset of each field and the size of the struct, in bytes. Raises ValueError if the compiler would pad."""
    at, found, widest = 0, {}, 1
    for item in block.fields:
        if item.c_type in structs:
            size = offsets(structs[item.c_type], structs)[1]
            alignment = 8 if size % 8 == 0 else 4
        else:
            size = alignment = 1 if item.c_type == "char" else struct.calcsize(CODES[item.c_type])
        if at % alignment:
            raise ValueError(
                f"{block.name}.{item.name}: at {at}, not on a multiple of {alignment}; declare the padding"
            )
        found[item.name] = at
        at += size * (item.count or 1)
        widest = max(widest, alignment)
    if at % widest:
        raise ValueError(f"{block.name}: {at} bytes, not a multiple of {widest}; declare the padding")
    return found, at


def _code(item: CField) -> str:
    if item.c_type == "char":
        return f"{item.count}s"
    return f"{item.count}x" if item.count else CODES[item.c_type]


def _enum(block: CBlock) -> str:
    base = "enum.IntFlag" if block.name.endswith("_flag") else "enum.IntEnum"
    members = "".join(f"    {_member(block, name)} = {value}\n" for name, value in block.members.items())
    return f'class {block.title}({base}):\n    """{block.comment}"""\n\n{members}'


def _member(block: CBlock, name: str) -> str:
    names = list(block.members)
    shared = next(i for i in range(len(name)) if len({other[: i + 1] for other in names}) > 1)
    return name[name[:shared].rindex("_") + 1 :]


def _constants(header: CHeader) -> str:
    literals = {name: f"{value:#x}" if value > 0xFFFF else value for name, value in header.constants.items()}
    return "".join(f"{name.removeprefix('SALUS_')} = {literal}\n" for name, literal in literals.items())


def _docstring(text: str, indent: str) -> str:
    lines = textwrap.wrap(f'"""{text}', LINE_COLUMNS - len(indent) - 3, subsequent_indent=indent)
    return "\n".join(lines) + ('"""' if len(lines) == 1 else f'\n{indent}"""')


MESSAGE_BASE = """class Message(msgspec.Struct, frozen=True):
    \"\"\"A frame. The tag of each class is the number of its kind.\"\"\"

    @property
    def kind(self) -> MessageKind:
        return _KINDS[type(self)]
"""
MESSAGE_TABLES = """_KINDS = {
    message: MessageKind(cast(int, message.__struct_config__.tag)) for message in Message.__subclasses__()
}
MESSAGE_TYPES = {kind: message for message, kind in _KINDS.items()}
"""


def messages() -> str:
    header = parse(WIRE)
    bodies = [block for block in header.structs if block.name != "salus_header"]
    parts = [
        '"""The frames of the session socket as values.\n\n' + NOTE.format(source="salus_wire.h") + "\n"
        "Fields that are not named are 0 or empty, as in C. Nothing in a message is trusted.\n"
        '"""\n\nfrom __future__ import annotations\n\nimport enum\nimport struct\n'
        "from typing import Annotated, cast\n\nimport msgspec\n",
        _constants(header)
        + f'HEADER = struct.Struct("<{"".join(_code(item) for item in header.structs[0].fields)}")\n',
        'U8 = Annotated[int, "B"]\nU32 = Annotated[int, "I"]\nU64 = Annotated[int, "Q"]\nPad6 = Annotated[int, "6x"]\n'
        + "".join(
            f'{name} = Annotated[str, "{header.constants[f"SALUS_{name.upper()}_BYTES"]}s"]\n'
            for name in ("Text", "Rule", "Device")
        ),
    ]
    kinds = header.enums[0].members
    blocks = [_enum(block) for block in header.enums]
    blocks += [MESSAGE_BASE, *(_message(block, kinds) for block in bodies), MESSAGE_TABLES]
    return "\n".join(parts) + "\n\n" + "\n\n".join(blocks)


_HINTS = {"B": "U8", "I": "U32", "Q": "U64"}


def _message(block: CBlock, kinds: dict[str, int]) -> str:
    offsets(block, {item.name: item for item in parse(WIRE).structs})
    lines = [f"class {block.title}(Message, frozen=True, tag={kinds[block.name.upper()]}):"]
    lines += [f"    {_docstring(block.comment, '    ')}", ""]
    for item in block.fields[1:]:
        hint = item.name.capitalize() if item.c_type == "char" else "Pad6" if item.count else _HINTS[_code(item)]
        lines.append(f"    {item.name}: {hint} = " + ('""' if item.c_type == "char" else "0"))
    return "\n".join(lines) + "\n"


def pages() -> str:
    header = parse(PAGES)
    structs = {block.name: block for block in header.structs}
    text = '"""The layout of the pages that salusd shares with sessions: offsets in bytes.\n\n'
    text += NOTE.format(source="salus_pages.h") + '\n"""\n\nimport enum\n\n' + _constants(header)
    text += f"SLOT_BYTES = {offsets(structs['salus_turn_slot'], structs)[1]}\n\n\n"
    text += "\n\n".join(_enum(block) for block in header.enums)
    for block in header.structs:
        found, _ = offsets(block, structs)
        text += f'\n\nclass {block.title}Offset:\n    """Of struct {block.name}."""\n\n'
        text += "".join(f"    {name.upper()} = {at}\n" for name, at in found.items() if "reserved" not in name)
    return text


def libsalus() -> str:
    wire, header = parse(WIRE), parse(LIBSALUS, LIBSALUS_CUDA)
    fault = next(block for block in wire.structs if block.name == "salus_fault")
    codes = [_code(item) for item in (*wire.structs[0].fields, *fault.fields[1:])]
    text = '"""The interface of libsalus for ctypes, and what this package needs of the wire format.\n\n'
    text += NOTE.format(source="salus.h, cuda_lane.h and salus_wire.h") + '\n"""\n\nimport ctypes\n'
    wire.constants = {name: value for name, value in wire.constants.items() if name in JOB_CONSTANTS}
    text += "from typing import Any, ClassVar, List, Tuple\n\n" + _constants(wire) + _constants(header)
    for block in (*wire.enums, *header.enums):
        if block.name in ("salus_framework", "salus_hello_flag", "salus_follower_pending"):
            text += "".join(f"{name.removeprefix('SALUS_')} = {value}\n" for name, value in block.members.items())
    text += f"FAULT = {wire.enums[0].members['SALUS_FAULT']}\n"
    text += f'FAULT_FORMAT = "<{"".join(codes)}"  # header and body of a FAULT frame\n\n'
    text += "FieldList = List[Tuple[str, Any]]\n\n\n"
    text += "def _fields(kind: Any, names: str) -> FieldList:\n    return [(name, kind) for name in names.split()]\n"
    text += "".join(_structure(block) for block in header.structs)
    text += "\n\n# Name, result and arguments of each function.\nPROTOTYPES: List[Tuple[str, Any, List[Any]]] = [\n"
    for name, result, arguments in header.prototypes:
        text += f'    ("{name}", {_argument(result)}, [{", ".join(_argument(part) for part in arguments)}]),\n'
    return text + "]\n"


def _structure(block: CBlock) -> str:
    text = f"\n\nclass {block.title}(ctypes.Structure):\n    _fields_: ClassVar[FieldList] = [\n"
    for kind, items in groupby(block.fields, _ctype):
        names = textwrap.wrap(" ".join(item.name for item in items), LINE_COLUMNS - 20)
        joined = " ".join(f'"{line}{" " if line != names[-1] else ""}"' for line in names)
        text += f"        *_fields({kind}, {joined}),\n"
    return text + "    ]\n"


def _ctype(item: CField) -> str:
    base = "ctypes.c_void_p" if item.is_pointer else f"ctypes.{CTYPES[item.c_type]}"
    return f"{base} * {item.count}" if item.count else base


def _argument(declaration: str) -> str:
    """The ctypes name of a C type, which a parameter's name may follow."""
    if declaration == "void":
        return "None"
    pointers = declaration.count("*")
    words = [word for word in re.findall(r"\w+", declaration) if word != "const"]
    if not pointers:
        return f"ctypes.{CTYPES[words[0]]}"
    if words[0] == "struct" and pointers == 1:
        return f"ctypes.POINTER({CBlock(words[1], '').title})"
    return "ctypes.c_char_p" if words[0] == "char" else "ctypes.c_void_p"


MODULES = {
    "nodedaemon/wire/messages.py": messages,
    "nodedaemon/wire/pages.py": pages,
    "nodedaemon/job/salus_job/layouts.py": libsalus,
}


def generate(path: str) -> str:
    """The text of one generated module, formatted as the tree is."""
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", path, "-"]
    return subprocess.run(command, input=MODULES[path](), cwd=ROOT, capture_output=True, text=True, check=True).stdout


def main() -> None:
    for path in MODULES:
        (ROOT / path).write_text(generate(path))


if __name__ == "__main__":
    main()
