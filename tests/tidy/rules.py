"""The house rules as functions from the path and text of a file to its problems. The tests apply them to the tree.

A problem names the place and what to do. test_rules.py has a bad sample for each rule, which the rule must find.
"""

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.tidy.phrases import banned_phrases

ROOT = Path(__file__).parents[2]

MODULE_LINES_MAX = 550
FUNCTION_LINES_MAX = 60
POLICY_LINES_MAX = 100
PARAMETERS_MAX = 6
MARKDOWN_COLUMNS_MAX = 100

SOURCE_SUFFIXES = {".py", ".c", ".h", ".lua", ".sh"}
BANNED_STEM = re.compile(r"(^|_)(utils?|helpers?|common|managers?|misc|stuff|info|data|handlers?|part\d+)$")
# Split so that this file does not break its own rule.
OPEN_END = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b(?!\(?#\d+)")
BANNER = re.compile(r"^\s*(#|//|/\*)\s*[-=*#~]{5,}")
BARE_IGNORE = re.compile(r"#\s*type:\s*ignore(?!\[)")
# Split for the same reason.
MACHINE_PATH = re.compile(r"(?<![\w.~$}-])/(?:" + "wo" + r"rk|root|home/[a-z]\w*)/[\w.-]")
OPEN_INTERPRETER = re.compile(r"sys\.executable,\s*\"-[cm]\"")
LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
CODE_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
HEADING = re.compile(r"^#+\s+(.*?)\s*$", re.MULTILINE)

#: Folders whose code is installed, and tools/, which is held to the same rules.
PRODUCT = ("slurm_plugin", "nodedaemon", "accounting", "cli", "tools")

#: Words that would be confused with a word of the glossary. docs/glossary.md lists them as refused.
NEVER_WORDS = {
    "rank": "job_class",
    "partition": "lane",
    "tenant": "domain",
    "fingerprint": "signature",
}
#: Names that make a reader guess what they hold. Split so that this file does not break the rule for phrases.
VAGUE_NAMES = frozenset(("told given ma" + "te ma" + "tes desk books keeper").split())


def tracked_files() -> list[Path]:
    """The files that a commit would contain: tracked files, and new files that are not ignored."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=60,
    )
    names = {name for name in listing.stdout.decode().split("\0") if name}
    return sorted(Path(name) for name in names if (ROOT / name).is_file() and not (ROOT / name).is_symlink())


def text_of(path: Path) -> str:
    """The text of a file of the tree; binary files have none."""
    data = (ROOT / path).read_bytes()
    return "" if b"\0" in data else data.decode("utf-8", errors="replace")


def long_modules(path: Path, text: str) -> Iterator[str]:
    """A file that grows past the bound is split into modules with names of their own."""
    limit = POLICY_LINES_MAX if path.parent.name == "policies" and path.stem != "__init__" else MODULE_LINES_MAX
    count = len(text.splitlines())
    if path.suffix in SOURCE_SUFFIXES and count > limit:
        yield f"{path}: {count} lines, more than {limit}; split it"


def long_functions(path: Path, text: str) -> Iterator[str]:
    """A function fits on one screen."""
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                count = (node.end_lineno or node.lineno) - node.lineno + 1
                if count > FUNCTION_LINES_MAX:
                    yield f"{path}:{node.lineno}: {node.name}: {count} lines, more than {FUNCTION_LINES_MAX}; split it"
    elif path.suffix == ".c":
        yield from _long_c_functions(path, text)


def _long_c_functions(path: Path, text: str) -> Iterator[str]:
    # With our .clang-format, only the braces of a function's body are in the first column.
    start = None
    for number, line in enumerate(text.splitlines(), start=1):
        if line == "{":
            start = number
        elif line == "}" and start is not None:
            count = number - start + 1
            if count > FUNCTION_LINES_MAX:
                yield f"{path}:{start}: function of {count} lines, more than {FUNCTION_LINES_MAX}; split it"
            start = None


def banned_names(path: Path, _text: str) -> Iterator[str]:
    """A file is named after what it holds. Unrelated things end up in files with names like these."""
    if path.suffix not in SOURCE_SUFFIXES:
        return
    for part in (*path.parent.parts, path.stem):
        if BANNED_STEM.search(part):
            yield f"{path}: {part} says nothing; name what the file holds"


def open_ends(path: Path, text: str) -> Iterator[str]:
    """Open work is recorded in the tracker, and the comment names the issue."""
    if path.suffix in SOURCE_SUFFIXES or path.suffix == ".toml":
        for number, line in enumerate(text.splitlines(), start=1):
            if OPEN_END.search(line):
                yield f"{path}:{number}: open end without an issue number; write TODO(#7) or do it"


def banners(path: Path, text: str) -> Iterator[str]:
    """Comments are sentences."""
    if path.suffix in SOURCE_SUFFIXES:
        for number, line in enumerate(text.splitlines(), start=1):
            if BANNER.match(line):
                yield f"{path}:{number}: banner; write a sentence or nothing"


def bare_ignores(path: Path, text: str) -> Iterator[str]:
    """A comment that silences the type checker names the error."""
    if path.suffix == ".py":
        for number, line in enumerate(text.splitlines(), start=1):
            if BARE_IGNORE.search(line):
                yield f"{path}:{number}: type: ignore without a code"


def open_imports(path: Path, text: str) -> Iterator[str]:
    """Our programs start Python without the working directory in its search path."""
    if path.suffix == ".py" and path.parts[0] in PRODUCT[:-1]:
        for found in OPEN_INTERPRETER.finditer(text):
            number = text.count("\n", 0, found.start()) + 1
            yield f"{path}:{number}: Python would import from the working directory; use own_module or -sP"


def missing_docstrings(path: Path, text: str) -> Iterator[str]:
    """A module starts with its purpose, a package with what belongs there."""
    if path.suffix == ".py" and ast.get_docstring(ast.parse(text)) is None:
        wanted = "which modules belong here" if path.stem == "__init__" else "what the module is for"
        yield f"{path}: no docstring; say {wanted}"


def wide_constructors(path: Path, text: str) -> Iterator[str]:
    """A constructor with more than six parameters lacks an object, and so does a class with more than six callbacks."""
    if path.suffix != ".py" or path.parts[0] not in PRODUCT:
        return
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ClassDef):
            continue
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                count = len([*item.args.posonlyargs, *item.args.args, *item.args.kwonlyargs]) - 1
                if count > PARAMETERS_MAX:
                    yield f"{path}:{item.lineno}: {node.name}: {count} parameters; find the object that is missing"
        fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
        count = sum("Callable" in ast.unparse(item.annotation) for item in fields)
        if count > PARAMETERS_MAX:
            yield f"{path}:{node.lineno}: {node.name}: {count} callbacks; find the object that is missing"


def kind_tests(path: Path, text: str) -> Iterator[str]:
    """Only a driver knows the kind of its device. Other code asks for a capability."""
    if path.suffix != ".py" or path.parts[0] not in PRODUCT or path.parts[:2] == ("nodedaemon", "drivers"):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            is_kind = any(re.search(r"\bkind$", ast.unparse(side)) for side in sides)
            if is_kind and any(re.search(r"[\"'](cuda|host)[\"']", ast.unparse(side)) for side in sides):
                yield f"{path}:{node.lineno}: {ast.unparse(node)}: give the device a capability and ask for that"


def vague_names(path: Path, text: str) -> Iterator[str]:
    """A name is the noun of what it holds."""
    if path.suffix == ".py":
        for name, number in sorted(set(_defined_names(ast.parse(text)))):
            if name.strip("_") in VAGUE_NAMES:
                yield f"{path}:{number}: {name}: name the thing, for example reported_bytes, options or peers"


def wide_markdown(path: Path, text: str) -> Iterator[str]:
    """Prose is wrapped at 100 columns; tables, code, markers, links and generated manuals cannot be."""
    if path.suffix != ".md" or path.parts[:2] == ("docs", "man"):
        return
    plain = COMMENT.sub(_keep_lines, CODE_BLOCK.sub(_keep_lines, text))
    for number, line in enumerate(plain.splitlines(), start=1):
        words = re.sub(r"^\s*([-*>]|\d+\.|#+)?\s*", "", line)
        if len(line) > MARKDOWN_COLUMNS_MAX and not line.lstrip().startswith("|") and " " in words:
            yield f"{path}:{number}: {len(line)} columns, more than {MARKDOWN_COLUMNS_MAX}; wrap it"


def _keep_lines(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def double_class_names(files: Iterable[tuple[Path, str]]) -> Iterator[str]:
    """Two classes of the product never share a name."""
    places: dict[str, list[str]] = {}
    # Names of the core come first, then those of salus.conf, so that the other class is reported.
    for path, text in sorted(
        files, key=lambda file: (*(part not in file[0].parts for part in ("core", "config")), file)
    ):
        if path.suffix == ".py" and path.parts[0] in PRODUCT:
            for node in ast.parse(text).body:
                if isinstance(node, ast.ClassDef):
                    places.setdefault(node.name, []).append(f"{path}:{node.lineno}")
    for name, found in sorted(places.items()):
        for place in found[1:]:
            yield f"{place}: {name}: also at {found[0]}; give it a more specific name"


def machine_paths(path: Path, text: str) -> Iterator[str]:
    """Nothing in the tree depends on the machine on which it was written."""
    for number, line in enumerate(text.splitlines(), start=1):
        found = MACHINE_PATH.search(line)
        if found:
            yield f"{path}:{number}: {found.group()}...: a path of one machine; make it relative"


def never_words(path: Path, text: str) -> Iterator[str]:
    """Where two words would be confused, docs/glossary.md fixes one; the core uses that one."""
    if path.suffix != ".py" or path.parts[:2] != ("nodedaemon", "core"):
        return
    for name, number in _defined_names(ast.parse(text)):
        words = re.findall(r"[a-z0-9]+|[A-Z][a-z0-9]*", name)
        for word in {item.lower() for item in words} & NEVER_WORDS.keys():
            yield f"{path}:{number}: {name}: not {word} but {NEVER_WORDS[word]} (docs/glossary.md)"


def _defined_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno


def sleeps(path: Path, text: str) -> Iterator[str]:
    """A test waits for an event with a deadline, never for time to pass; a function that polls is called wait_...."""
    if path.suffix != ".py" or "tests" not in path.parts or "bench" in path.parts:
        return
    tree = ast.parse(text)
    allowed = {
        id(call)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.lstrip("_").startswith("wait")
        for call in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and id(node) not in allowed:
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if name == "sleep":
                yield f"{path}:{node.lineno}: sleep in a test; poll with a deadline in a function called wait_..."


def broken_links(path: Path, text: str) -> Iterator[str]:
    """Links in a Markdown file to files of the tree and to their headings are valid."""
    if path.suffix != ".md":
        return
    for match in LINK.finditer(CODE_BLOCK.sub("", text)):
        target = match.group(1) or match.group(2)
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (ROOT / path).parent / name
        if name and not file.exists():
            yield f"{path}: link to {target}: no such file"
        elif (
            anchor and (not name or file.suffix == ".md") and anchor not in anchors(file.read_text() if name else text)
        ):
            yield f"{path}: link to {target}: no such heading"


def anchors(text: str) -> set[str]:
    """The anchors that a Markdown page's headings have, as GitHub and Sphinx make them."""
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(CODE_BLOCK.sub("", text)))
    return {heading.replace(" ", "-") for heading in plain}


RULES = (
    long_modules,
    long_functions,
    banned_names,
    open_ends,
    banners,
    bare_ignores,
    open_imports,
    missing_docstrings,
    wide_constructors,
    kind_tests,
    vague_names,
    machine_paths,
    never_words,
    sleeps,
    broken_links,
    wide_markdown,
    banned_phrases,
)
