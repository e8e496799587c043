"""Settings of Sphinx: one set of Markdown pages becomes the HTML site and the manual pages (`make docs`).

The title and the Name section of a page define the name and the summary of its manual.
"""

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

HERE = Path(__file__).parent

project = "Salus"
author = "the Salus authors"
project_copyright = author
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = True

myst_enable_extensions = ["deflist", "colon_fence"]
myst_heading_anchors = 4
# `--option` must stay two hyphens, in pages and in manuals.
smartquotes = False
highlight_language = "none"
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_title = "Salus"
html_static_path = ["_static"]
html_css_files = ["salus.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"sidebar_hide_name": False, "navigation_with_keys": True}

man_show_urls = False


def read_manual(page: Path) -> tuple[str, str, str, list[str], int]:
    """A row of `man_pages` from a page that opens with `# name(section)` and `## Name`."""
    text = page.read_text()
    title = re.match(r"# (\S+)\((\d)\)\n", text)
    summary = re.search(r"^## Name\n\n\S+ - (.+)$", text, re.MULTILINE)
    if title is None or summary is None:
        raise ValueError(f"{page}: open it with `# name(section)` and `## Name`, then `name - what it is`")
    return (f"man/{page.stem}", title[1], summary[1], [author], int(title[2]))


man_pages = [read_manual(page) for page in sorted((HERE / "man").glob("*.md"))]


def drop_name_section(app: Sphinx, doctree: nodes.document, _docname: str) -> None:
    """Remove the page's Name section from a manual, because the man builder writes one itself."""
    if app.builder.name != "man":
        return
    for section in list(doctree.findall(nodes.section)):
        if section.astext().startswith("Name\n"):
            section.parent.remove(section)


def drop_diagrams(_app: Sphinx, _docname: str, source: list[str]) -> None:
    """Remove Mermaid diagrams, which a forge draws and Sphinx shows as code. The tables below them say the same."""
    source[0] = re.sub(r"^```mermaid\n.*?^```\n", "", source[0], flags=re.MULTILINE | re.DOTALL)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-resolved", drop_name_section)
    app.connect("source-read", drop_diagrams)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
