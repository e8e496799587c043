"""The shell blocks of a page, each with its line number, so that a test can run what a reader would type."""

import re
from dataclasses import dataclass
from pathlib import Path

#: What a fence may be called in a page whose blocks are run; anything else could hide commands that nobody runs.
BLOCK_KINDS = {"sh", "python", "text", "{toctree}"}
#: Commands that are tested elsewhere, or are the tests.
EXCEPTED = ("make demo", "make test", "make deb")


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    kind: str
    text: str

    @property
    def commands(self) -> str:
        lines = self.text.splitlines()
        return "\n".join(line for line in lines if not line.startswith(EXCEPTED))


def blocks_of(page: Path) -> list[Block]:
    """Every fenced block of a page."""
    text = page.read_text()
    found = re.finditer(r"^```(\S*)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(page.name, text.count("\n", 0, match.start()) + 1, match[1], match[2]) for match in found]


def script_of(blocks: list[Block]) -> str:
    """One script that runs the blocks in order and says which one it is in; the first failure ends it."""
    parts = ["set -euo pipefail"]
    for block in blocks:
        parts += [f"echo '== {block.page}:{block.line}'", block.commands]
    return "\n".join([*parts, "echo '== end'", ""])
