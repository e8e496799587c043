"""The program `salus`: registers the commands. A new command adds its import and one line below.

Commands import slow libraries (SQLAlchemy, plotly, torch) inside their functions, so that `salus --help` is fast.
"""

import sys

from cli import entry
from cli.node import policy
from cli.node.doctor import doctor
from cli.node.run import run
from cli.node.status import status, why
from cli.node.top import top
from cli.simulation.simulate import EPILOG as SIMULATE_EPILOG
from cli.simulation.simulate import simulate
from cli.site.cluster import app as cluster
from cli.site.config import app as config
from cli.site.demo import demo
from cli.site.profiles import app as profiles
from cli.site.slurm_config import print_gres, write_lua

app = entry.new_program("salus", "Share one GPU between several deep-learning jobs, safely and fairly, under Slurm.")

app.command(context_settings={"ignore_unknown_options": True})(run)
for command in (status, why, top, policy.reload, policy.drain, policy.resume, doctor, demo):
    app.command()(command)
app.add_typer(policy.policies, name="policy")
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
