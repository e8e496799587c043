"""The shell blocks of a page with their line numbers, so that a test can run what a reader would type."""

import re
from dataclasses import dataclass
from pathlib import Path

#: The kinds of fenced blocks in a page whose blocks are run. Any other kind could hide commands that no test runs.
BLOCK_KINDS = {"sh", "console", "python", "text", "{toctree}"}
#: Commands that other tests cover, or that run the tests.
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
    """One script that runs the blocks in order and prints the place of each. The first failure ends it."""
    parts = ["set -euo pipefail"]
    for block in blocks:
        parts += [f"echo '== {block.page}:{block.line}'", block.commands]
    return "\n".join([*parts, "echo '== end'", ""])
