"""Phrases that plain technical English does not need, and the texts that must not contain them.

These texts are Markdown outside of code, comments, the strings and docstrings of programs, and names of tests. Each
phrase has a suggestion of what to write instead.
"""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

NOUNS = "session|job|node|device|file|line|process|user|module|method|verb|lane|row|policy|noun"
LINKS = "of|on|to|that|where|takes|means|for|in|is|has"
#: Pattern, and what to write instead.
PHRASES = {
    r"anew": "again",
    r"the own": "its own, your own",
    r"(?:is|are|was|were|be|been|being|gets?) told": "the noun, in the active voice: the daemon reports",
    r"tells? of|told of": "reports, describes",
    r"mend(?:s|ed|ing)?": "fix, repair",
    r"mates?": "peers, the other sessions",
    r"dear": "expensive",
    r"(?:by|for|to|of|from|with|at) who": "by whoever; or name the reader: if you have",
    r"(?:kernel|daemon|session|driver|slurm|system)'s word": "what the kernel reports",
    r"the books": "the accounting, the records",
    r"at most so (?:many|much|long)": "at most that many",
    r"(?:to|can|could|may) be had": "available",
    r"hands? that feeds?": "the program that drives",
    rf"(?:one|two|three|four|once|twice|\d+)(?: (?!{LINKS})\w+)? an? (?:{NOUNS})": "one per session",
    r"thereof|therein|whereof|wherein": "of it, in it",
    r"hitherto|henceforth|whilst|amongst|upon": "so far, from now on, while, among, on",
    r"bears? out": "confirms, supports",
    r"one too many": "more than the limit",
    r"in (?:its|their|a process's) li(?:fe|ves)": "while it lives",
}
PATTERN = re.compile(
    r"(?<![\w-])(?:" + "|".join(f"({phrase})".replace(" ", r"\s+") for phrase in PHRASES) + r")(?![\w-])", re.IGNORECASE
)
#: These modules define the phrases and their samples.
EXCEPTED = {Path("tests/tidy/phrases.py"), Path("tests/tidy/test_rules.py")}

C_TEXT = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:[^\"\\\n]|\\.)*\"", re.DOTALL)
LUA_TEXT = re.compile(r"--[^\n]*|\"(?:[^\"\\\n]|\\.)*\"")
HASH_TEXT = re.compile(r"#[^\n]*")
MARKDOWN_CODE = re.compile(r"^```.*?^```|`[^`\n]*`|<!--.*?-->", re.MULTILINE | re.DOTALL)


def banned_phrases(path: Path, text: str) -> Iterator[str]:
    """Texts are written in plain technical English."""
    if path in EXCEPTED:
        return
    for start, passage in prose(path, text):
        for match in PATTERN.finditer(re.sub(r"(?<=\s)(?:\*|#|//|--)(?=\s)", " ", passage)):
            instead = list(PHRASES.values())[match.lastindex - 1 if match.lastindex else 0]
            number = start + passage.count("\n", 0, match.start())
            yield f"{path}:{number}: {' '.join(match[0].split())!r}; write: {instead}"


def prose(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """The English passages of a file, each with the line at which it starts."""
    if path.suffix == ".md":
        yield 1, MARKDOWN_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    elif path.suffix == ".py":
        yield from python_prose(text)
    elif path.suffix in (".c", ".h", ".S"):
        yield from passages(C_TEXT, text)
    elif path.suffix == ".lua":
        yield from passages(LUA_TEXT, text)
    elif path.suffix in (".sh", ".toml", ".conf") or path.name == "Makefile":
        yield from passages(HASH_TEXT, text)


def python_prose(text: str) -> Iterator[tuple[int, str]]:
    # Adjacent comment lines are one passage, so that a phrase is found across the end of a line.
    last_line, comment = 0, ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last_line + 1 and comment:
                yield last_line - comment.count("\n"), comment
                comment = ""
            comment = f"{comment}\n{token.string}" if comment else token.string
            last_line = token.start[0]
        elif token.type in STRINGS:
            yield token.start[0], token.string
        elif token.type == tokenize.NAME and token.string.startswith("test_"):
            yield token.start[0], token.string.replace("_", " ")
    if comment:
        yield last_line - comment.count("\n"), comment


#: Since Python 3.12 an f-string comes in parts.
STRINGS = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def passages(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, str]]:
    for match in pattern.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match[0]
