"""The pages build without warnings, as HTML and as manual pages, and every program has a manual page."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build(builder, source, target):
    argv = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", builder, "-d", str(target / "doctrees")]
    return subprocess.run(
        [*argv, str(source), str(target / builder)], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    target = tmp_path_factory.mktemp("site")
    for builder in ("html", "man"):
        done = build(builder, ROOT / "docs", target)
        assert done.returncode == 0, done.stderr
    return target


def test_every_page_becomes_html(site):
    pages = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")}
    assert pages, "no pages found"
    built = {path.relative_to(site / "html").with_suffix("") for path in (site / "html").rglob("*.html")}
    assert pages <= built


def test_every_program_and_salus_conf_have_a_manual_page_with_one_name_line(site):
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    manuals = {path.stem: path.read_text() for path in (site / "man").iterdir()}
    assert {*scripts, "salus.conf"} <= set(manuals)
    for name, text in manuals.items():
        assert text.count(".SH NAME\n") + text.count(".SH Name\n") == 1, name
        assert f"\n{name} \\- " in text, name
        assert ".SH DESCRIPTION" in text.upper(), name
