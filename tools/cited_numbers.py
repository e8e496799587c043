"""Recorded benchmarks, and the numbers in README and docs/benchmarks.md that come from them.

`docs/benchmarks/NAME.json` holds a summary of runs of `tests/bench/NAME.py` with dates, commits and machine (`make
record BENCH=NAME`, tools/record.py). A page cites a number with a marker; `make numbers` writes it after the marker:

    <!-- n: gate.median.ratio .2f -->1.01<!-- /n -->
    <!-- table: sidebyside.median.configurations; Configuration=@; Average in s=average_s .1f -->...<!-- /table -->

A path starts with the file's name. Next, `last` is the last run; `median`, `min` and `max` are taken over all runs,
figure by figure; `count` is the number of runs; `date`, `commit` and `machine` say where the figures come from. `@` is
the name of the row, and the path `@recorded` has a row for every file. No number is typed by hand: tests/tidy compares
every marker with the files and rejects a number without a marker. A benchmark without a record is shown as such.
"""

import ast
import json
import re
import sys
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path("docs/benchmarks")
PAGES = (Path("README.md"), Path("docs/benchmarks.md"))

NUMBER = re.compile(r"<!-- n: (?P<path>\S+)(?: (?P<form>\S+))? -->(?P<text>.*?)<!-- /n -->", re.DOTALL)
TABLE = re.compile(r"<!-- table: (?P<path>[^;]+);(?P<columns>.*?)-->\n(?P<text>.*?)<!-- /table -->", re.DOTALL)
#: Numbers in code, comments and link targets are not claims.
UNCLAIMED = re.compile(
    r"^```.*?^```|^~~~.*?^~~~|`[^`\n]*`|<!--.*?-->|\]\([^)\s]*\)|<[^>\n]*>|https?://\S+", re.DOTALL | re.MULTILINE
)
#: Digits that are part of a name: a release, or an ordered list.
NAMES = re.compile(
    r"\b(?:Debian|Ubuntu|Slurm|Python|PyTorch|torch|CUDA|C|SQLAlchemy|RFC|ASPLOS|NSDI|Linux)[ -]v?\d[\d.]*"
    r"(?:(?:, | and | or |/)\d\d\.\d\d)*|^\s*\d+\. ",
    re.MULTILINE,
)
CLAIM = re.compile(r"(?<![\w.])[+-]?\d[\d.,]*\S*")


MISSING = "(not recorded)"


class StaleError(AssertionError):
    """A marker whose path the recorded files do not have."""


class UnrecordedError(StaleError):
    """A benchmark that was never recorded."""


def load(name, root=ROOT):
    """One recorded benchmark, in the form that the paths of markers refer to."""
    path = root / FOLDER / f"{name}.json"
    if not path.is_file():
        raise UnrecordedError(f"{name}: no {FOLDER / name}.json; record it: make record BENCH={name}")
    record = json.loads(path.read_text())
    last = record["runs"][-1]
    return {
        "count": len(record["runs"]),
        "date": date.fromisoformat(last["date"][:10]).isoformat(),
        "commit": last["commit"],
        "machine": record["machine"],
        "last": record["last"],
        # After a single run, all three are that run.
        **{word: record.get(word, record["last"]) for word in ("median", "min", "max")},
    }


def recorded(root=ROOT):
    """One row per recorded file."""
    rows = {}
    for path in sorted((root / FOLDER).glob("*.json")):
        found = load(path.stem, root)
        last = found["last"] if isinstance(found["last"], dict) else {}
        about = ast.get_docstring(ast.parse((ROOT / "tests" / "bench" / path.name).with_suffix(".py").read_text()))
        rows[path.stem] = {
            "about": (about or "").partition("\n")[0].partition(": `make bench")[0].rstrip(".").replace("|", "/"),
            "ratio": last.get("ratio"),
            "n": last.get("n"),
            **{key: found[key] for key in ("date", "commit", "count")},
        }
    return rows


def look_up(path, root=ROOT):
    if path == "@recorded":
        return recorded(root)
    name, *keys = path.split(".")
    found = load(name, root)
    for key in keys:
        try:
            found = found[int(key)] if isinstance(found, list) else found[key]
        except (KeyError, IndexError, ValueError, TypeError):
            known = ", ".join(found) if isinstance(found, dict) else type(found).__name__
            raise StaleError(f"{path}: no {key}; there is: {known}") from None
    return found


def shown(value, form=None):
    if value is None:
        return "-"
    return str(value) if form is None else format(value, form)


def number_text(match, root=ROOT):
    return shown(look_up(match["path"], root), match["form"])


def table_text(match, root=ROOT):
    """A Markdown table with a row for each entry under the path."""
    rows = look_up(match["path"].strip(), root)
    columns = []
    for part in match["columns"].split(";"):
        heading, _, source = part.strip().partition("=")
        key, _, form = source.strip().partition(" ")
        columns.append((heading, key, form or None))
    lines = ["| " + " | ".join(heading for heading, _, _ in columns) + " |"]
    named = list(rows.items()) if isinstance(rows, dict) else list(enumerate(rows))
    words = {key for _, key, _ in columns if key == "@" or any(isinstance(entry(row, key), str) for _, row in named)}
    lines.append("|" + "|".join("---" if key in words else "---:" for _, key, _ in columns) + "|")
    for name, row in named:
        cells = [name if key == "@" else shown(entry(row, key), form) for _, key, form in columns]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def entry(row, key):
    for part in key.split("."):
        row = row.get(part) if isinstance(row, dict) else None
    return row


def rendered(text, root=ROOT):
    """A page with every number as the recorded files have it."""

    def replaced(match, make, missing):
        start, end = match.span("text")
        try:
            content = make(match, root)
        except UnrecordedError:
            # A path that names no benchmark at all is a mistake.
            if not (ROOT / "tests" / "bench" / f"{match['path'].strip().partition('.')[0]}.py").is_file():
                raise
            content = missing
        return match[0][: start - match.start()] + content + match[0][end - match.start() :]

    text = NUMBER.sub(lambda match: replaced(match, number_text, MISSING), text)
    return TABLE.sub(lambda match: replaced(match, table_text, f"{MISSING}\n"), text)


def typed_numbers(text):
    """Numbers of a page that are outside of markers, each with its line."""
    for pattern in (NUMBER, TABLE, UNCLAIMED, NAMES):
        # Lines are kept, so that the report can name them.
        text = pattern.sub(lambda match: " " + "\n" * match[0].count("\n"), text)
    return [
        f"{number}: {match[0]}"
        for number, line in enumerate(text.splitlines(), start=1)
        for match in CLAIM.finditer(line)
    ]


def main():
    """Write the numbers into all pages."""
    for page in PAGES:
        path = ROOT / page
        if path.exists():
            text = path.read_text()
            path.write_text(rendered(text))
            print(f"numbers: {page}{'' if path.read_text() == text else ' changed'}", file=sys.stderr)


if __name__ == "__main__":
    main()
