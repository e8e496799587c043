"""Every house rule finds a bad sample and leaves a good one alone: a check that cannot fail checks nothing."""

from pathlib import Path

import pytest

from tests.tidy import rules

FUNCTION = "def f():\n" + "    x = 1\n" * 60
C_FUNCTION = "int f(void)\n{\n" + "    g();\n" * 59 + "}\n"
OPEN = "TO" + "DO"
DIRECTORY = "/ro" + "ot/x"

BAD = [
    (rules.long_modules, "nodedaemon/a.py", "x = 1\n" * (rules.MODULE_LINES_MAX + 1)),
    (rules.long_modules, "nodedaemon/job/a.c", "\n" * (rules.MODULE_LINES_MAX + 1)),
    (rules.long_modules, "nodedaemon/core/policies/a.py", "x = 1\n" * 101),
    (rules.long_functions, "a.py", FUNCTION),
    (rules.long_functions, "a.py", "async " + FUNCTION),
    (rules.long_functions, "a.c", C_FUNCTION),
    (rules.banned_names, "nodedaemon/utils.py", ""),
    (rules.banned_names, "nodedaemon/job_helpers.py", ""),
    (rules.banned_names, "nodedaemon/common/a.c", ""),
    (rules.banned_names, "tests/lanes_part2.py", ""),
    (rules.open_ends, "a.py", f"x = 1  # {OPEN}: later"),
    (rules.open_ends, "a.c", f"/* {OPEN} */"),
    (rules.banners, "a.py", "    # ------- lanes -------"),
    (rules.banners, "a.c", "/*********"),
    (rules.bare_ignores, "a.py", "x = f()  # type" + ": ignore"),
    (rules.open_imports, "cli/a.py", 'run([sys.executable, "-m", "cli.main"])'),
    (rules.open_imports, "nodedaemon/a.py", 'run([sys.executable,\n    "-c", PROGRAM])'),
    (rules.missing_docstrings, "a.py", "x = 1"),
    (rules.machine_paths, "README.md", f"see {DIRECTORY} for it"),
    (rules.machine_paths, "a.py", "open('/ho" + "me/ada/x')"),
    (rules.machine_paths, "Makefile", "\tcd /wo" + "rk/main"),
    (rules.never_words, "nodedaemon/core/a.py", "def pick_partition(): ..."),
    (rules.never_words, "nodedaemon/core/a.py", "class JobRank: ..."),
    (rules.never_words, "nodedaemon/core/a.py", "def f(tenant_id): ..."),
    (rules.never_words, "nodedaemon/core/a.py", "self.fingerprint = 1"),
    (rules.missing_docstrings, "nodedaemon/a/__init__.py", ""),
    (rules.wide_constructors, "cli/a.py", "class A:\n    def __init__(self, a, b, c, d, *, e, f, g): ..."),
    (
        rules.wide_constructors,
        "cli/a.py",
        "class A:\n" + "".join(f"    on_{x}: Callable[[], None]\n" for x in "abcdefg"),
    ),
    (rules.kind_tests, "nodedaemon/service/a.py", "x = device.kind == 'cuda'"),
    (rules.kind_tests, "cli/a.py", "if kind not in ('host', 'other'): ..."),
    (rules.vague_names, "tests/unit/a.py", "told = ask()"),
    (rules.vague_names, "a.py", "def f(given): ..."),
    (rules.wide_markdown, "docs/a.md", "word " * 21),
    (rules.wide_markdown, "README.md", "1. [a link](https://example.org) " + "word " * 20),
    (rules.banned_phrases, "docs/a.md", "The figures are\ntold again."),
    (rules.banned_phrases, "a.py", '"""Calls are dear."""'),
    (rules.banned_phrases, "a.py", "x = 1  # Its mates\n# follow."),
    (rules.banned_phrases, "a.py", 'raise ValueError(f"{x}: written anew")'),
    (rules.banned_phrases, "a.c", "/* One page\n * a session. */"),
    (rules.banned_phrases, "a.lua", "-- It is there for who has one."),
    (rules.banned_phrases, "Makefile", "# mend it"),
    (rules.banned_phrases, "a.py", "x = 1  # Counted upon arrival."),
    (rules.banned_phrases, "docs/a.md", "The runs bear out the claim."),
    (rules.banned_phrases, "a.py", '"""False if it is one too many."""'),
    (rules.banned_phrases, "a.c", "/* It never changes in its\n * life. */"),
    (rules.banned_phrases, "tests/unit/a.py", "def test_mates_share_a_lane(): ..."),
    (rules.sleeps, "tests/unit/a.py", "import time\ntime.sleep(1)"),
    (rules.sleeps, "tests/unit/a.py", "async def f():\n    await sleep(0)"),
    (rules.broken_links, "docs/a.md", "see [b](no-such-page.md)"),
    (rules.broken_links, "README.md", "![picture](docs/no-such.png)"),
    (rules.broken_links, "docs/a.md", "# Title\nsee [b](#other)"),
]

GOOD = [
    (rules.long_modules, "nodedaemon/a.py", "x = 1\n" * rules.MODULE_LINES_MAX),
    (rules.long_modules, "etc/grafana.json", "\n" * 5000),
    (rules.long_functions, "a.py", FUNCTION.removesuffix("    x = 1\n")),
    (rules.long_functions, "a.c", C_FUNCTION.replace("    g();\n", "", 1)),
    (rules.banned_names, "nodedaemon/core/state/lanes.py", ""),
    (rules.banned_names, "nodedaemon/sim/data/models.csv", ""),
    (rules.open_ends, "a.py", f"x = 1  # {OPEN}(#12): later"),
    (rules.banners, "a.py", "# A sentence - with a dash."),
    (rules.bare_ignores, "a.py", "x = f()  # type: ignore[no-untyped-call]"),
    (rules.open_imports, "cli/a.py", 'run([sys.executable, "-sP", "-m", "cli.main"])'),
    (rules.open_imports, "tests/a.py", 'run([sys.executable, "-m", "cli.main"])'),
    (rules.missing_docstrings, "a/__init__.py", '"""What belongs here."""'),
    (rules.wide_constructors, "cli/a.py", "class A:\n    def __init__(self, a, b, c, d, e, f): ..."),
    (rules.wide_constructors, "tests/a.py", "class A:\n    def __init__(self, a, b, c, d, e, f, g): ..."),
    (rules.kind_tests, "nodedaemon/drivers/a.py", "x = kind == 'cuda'"),
    (rules.kind_tests, "nodedaemon/service/a.py", "x = tensor.device.type == 'cuda' or device.can_park"),
    (rules.vague_names, "a.py", "reported_bytes = given()"),
    (rules.wide_markdown, "docs/a.md", "- " + "x" * 120 + "\n| " + "cell " * 30 + "|\n```\n" + "out " * 30 + "\n```\n"),
    (
        rules.wide_markdown,
        "docs/a.md",
        "It takes <!-- n: gate.median.ratio .2f -->1.01<!-- /n --> times " + "word " * 10,
    ),
    (rules.wide_markdown, "docs/man/a.md", "word " * 30),
    (
        rules.banned_phrases,
        "docs/a.md",
        "Amend the climate; `the own`; a deary; one session per job; bear it; too many; thereupon.",
    ),
    (rules.banned_phrases, "a.py", "mates = anew(dear)"),
    (rules.missing_docstrings, "a.py", '"""What it is for."""\nx = 1'),
    (rules.machine_paths, "README.md", "/etc/salus, https://example.org/work/x, $HOME/work/x, /workers/x, root/work/x"),
    (rules.never_words, "nodedaemon/core/a.py", "def lane_of(session): return session.partition"),
    (rules.never_words, "nodedaemon/service/a.py", "partition = 1"),
    (rules.sleeps, "tests/unit/a.py", "def wait_for(ready):\n    while not ready():\n        time.sleep(0.01)"),
    (rules.broken_links, "docs/a.md", "# A title, here\n[b](../README.md) [c](https://x) [d](#a-title-here)"),
    (rules.broken_links, "docs/a.md", "```\n[b](none.md)\n```\n"),
]


@pytest.mark.parametrize(("rule", "path", "text"), BAD)
def test_a_bad_sample_is_found(rule, path, text):
    assert len(list(rule(Path(path), text))) == 1


@pytest.mark.parametrize(("rule", "path", "text"), GOOD)
def test_a_good_sample_is_left_alone(rule, path, text):
    assert list(rule(Path(path), text)) == []


def test_two_classes_with_one_name_are_found():
    files = [(Path(f"cli/{name}.py"), "class Viewer: ...") for name in ("a", "b")]
    assert list(rules.double_class_names(files)) == [
        "cli/b.py:1: Viewer: also at cli/a.py:1; give it a more specific name"
    ]
    core = (Path("nodedaemon/core/z.py"), "class Viewer: ...")
    assert all(problem.startswith("cli/") for problem in rules.double_class_names([*files, core]))
    assert list(rules.double_class_names([files[0], (Path("tests/unit/a.py"), "class Viewer: ...")])) == []


def test_every_rule_has_a_bad_and_a_good_sample():
    for rule in rules.RULES:
        assert rule in {sample[0] for sample in BAD}
        assert rule in {sample[0] for sample in GOOD}
