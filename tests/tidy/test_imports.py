"""`salus --help` and `salus-acct --help` are fast: they load none of the slow libraries."""

import subprocess
import sys

import pytest

SLOW = ("sqlalchemy", "alembic", "plotly", "torch", "matplotlib", "numpy", "prometheus_client", "structlog")
PROGRAM = """
import sys
{extra}
try:
    from {module} import app
    app(args=["--help"], prog_name="salus")
except SystemExit:
    pass
print("LOADED", *sorted(set({slow!r}) & set(sys.modules)))
"""


def _slow_modules_after_help(extra: str = "", module: str = "cli.main") -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(extra=extra, module=module, slow=SLOW)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.splitlines()[-1].split()[1:]


@pytest.mark.parametrize("module", ["cli.main", "cli.acct.main"])
def test_help_loads_no_slow_library(module):
    assert _slow_modules_after_help(module=module) == []


def test_a_slow_library_is_found():
    assert _slow_modules_after_help("import sqlalchemy") == ["sqlalchemy"]
