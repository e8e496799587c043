"""The generated modules match the headers, and the compiler uses the same offsets as the generator."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nodedaemon.wire.messages import FRAME_BYTES_MAX, MESSAGE_TYPES
from nodedaemon.wire.pages import PAGE_BYTES, GatePageOffset
from tools import layouts


@pytest.mark.parametrize("path", layouts.MODULES)
def test_a_generated_module_is_up_to_date(path: str) -> None:
    assert (layouts.ROOT / path).read_text() == layouts.generate(path), f"{path} is stale; run make layouts"


def test_the_compiler_agrees_with_the_offsets(tmp_path: Path) -> None:
    lines = ["#include <stddef.h>", *[f'#include "{layouts.ROOT / path}"' for path in (layouts.WIRE, layouts.PAGES)]]
    structs = {block.name: block for path in (layouts.WIRE, layouts.PAGES) for block in layouts.parse(path).structs}
    for name, block in structs.items():
        fields, size_bytes = layouts.offsets(block, structs)
        lines.append(f'_Static_assert(sizeof(struct {name}) == {size_bytes}, "{name}");')
        lines += [f'_Static_assert(offsetof(struct {name}, {one}) == {at}, "{one}");' for one, at in fields.items()]
    assert len(lines) > 100
    source = tmp_path / "layouts.c"
    source.write_text("\n".join(lines) + "\n")
    subprocess.run(["gcc", "-std=c11", "-Wall", "-Wpadded", "-Werror", "-fsyntax-only", source], check=True)


def test_a_misaligned_field_is_refused() -> None:
    fields = [layouts.CField("uint8_t", "flag", None, False), layouts.CField("uint64_t", "size", None, False)]
    with pytest.raises(ValueError, match="declare the padding"):
        layouts.offsets(layouts.CBlock("salus_example", "", fields=fields), {})


def test_every_frame_fits_the_bound_and_every_kind_has_a_message() -> None:
    structs = {block.name: block for block in layouts.parse(layouts.WIRE).structs}
    assert max(layouts.offsets(block, structs)[1] for block in structs.values()) <= FRAME_BYTES_MAX
    assert len(MESSAGE_TYPES) == len(structs) - 1, "all but the header"


def test_each_writer_of_the_gate_page_has_cache_lines_of_its_own() -> None:
    structs = {block.name: block for block in layouts.parse(layouts.PAGES).structs}
    assert (GatePageOffset.LEASE, GatePageOffset.STATE, GatePageOffset.ITERATION_COUNT) == (64, 128, 192)
    assert layouts.offsets(structs["salus_turn_page"], structs)[1] == PAGE_BYTES
