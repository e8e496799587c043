"""The program `salus`: assembles the commands, one noun a file. A new noun adds its import and one line below.

Commands import slow libraries (SQLAlchemy, plotly, torch) inside their body, so that `salus --help` answers at once.
"""

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from cli import entry
from cli.node import doctor, policy, run, status, top
from cli.simulation.simulate import EPILOG as SIMULATE_EPILOG
from cli.simulation.simulate import simulate
from cli.site.cluster import app as cluster
from cli.site.config import app as config
from cli.site.demo import demo
from cli.site.profiles import app as profiles
from cli.site.slurm_config import print_gres, write_lua

app = typer.Typer(
    name="salus",
    help="Several deep-learning jobs share one GPU, safely and fairly, under Slurm.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"salus {version('salus')}")
        raise typer.Exit


@app.callback()
def _program(
    context: typer.Context,
    config_file: Annotated[
        Path | None,
        typer.Option("--config-file", "-f", metavar="FILE", help="Configuration file; SALUS_CONF comes second."),
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    # Commands read it through `cli.site.config.config_of(context)`.
    context.obj = config_file


# One line a noun.
for noun in (run, status, top, policy, doctor):
    noun.register(app)
app.command("demo")(demo)
app.add_typer(cluster, name="cluster")
config.command("lua")(write_lua)
config.command("gres")(print_gres)
app.add_typer(config, name="config")
app.command("simulate", epilog=SIMULATE_EPILOG)(simulate)
app.add_typer(profiles, name="profiles")


def main() -> None:
    """Console script `salus`."""
    sys.exit(entry.run(app, "salus"))


if __name__ == "__main__":
    main()
