"""The program salusd: reads the command line and the configuration, then runs the daemon until a signal arrives."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TextIO

from nodedaemon.config import Config, load_or_raise, locate
from nodedaemon.config.choices import LogFormat
from nodedaemon.core.errors import RequestError, SalusError
from nodedaemon.service.daemon import DaemonOptions, SalusDaemon
from nodedaemon.service.journal.dispatcher import DIGEST_INTERVAL_COUNT
from nodedaemon.service.sessions.recovery import GATHER_TIMEOUT_S
from nodedaemon.wire import logs


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="salusd", description="The execution service of Salus on a node.")
    parser.add_argument("-f", "--config-file", type=Path, help="configuration file; overrides SALUS_CONF")
    parser.add_argument("-N", "--node", default="", help="name of this node; default: the short host name")
    parser.add_argument("--exit-idle", type=float, default=0.0, metavar="S", help="exit after S seconds without jobs")
    parser.add_argument(
        "--digest-every",
        type=int,
        default=DIGEST_INTERVAL_COUNT,
        metavar="N",
        help="write a digest of the state to the journal every N events; a replay checks against it",
    )
    parser.add_argument(
        "--gather",
        type=float,
        default=GATHER_TIMEOUT_S,
        metavar="S",
        help="after a restart, wait up to S seconds for earlier sessions to reconnect",
    )
    parser.add_argument("-V", "--version", action="version", version=f"salusd {version('salus')}")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Console script `salusd`. Returns 0 after a signal, 2 for an invalid configuration, 1 for any other failure."""
    parsed = parse_arguments(arguments)
    config_file = locate(parsed.config_file)
    node = parsed.node or os.environ.get("SLURMD_NODENAME", "") or socket.gethostname().partition(".")[0]
    try:
        config = load_or_raise(config_file)
        readings = config.for_node(node).readings
        logs.configure(
            is_json=readings.log_format is LogFormat.JSON, level=readings.log_level, stream=_open_log(readings.log_file)
        )
        options = DaemonOptions(config_file, node, parsed.exit_idle, parsed.digest_every, parsed.gather)
        return asyncio.run(_run(options, config))
    except RequestError as error:
        print(f"salusd: {error}", file=sys.stderr)
        return 2
    except SalusError as error:
        print(f"salusd: {error}", file=sys.stderr)
        return 1


async def _run(options: DaemonOptions, config: Config) -> int:
    return await SalusDaemon(options, config).run()


def _open_log(path: str) -> TextIO:
    if not path:
        return sys.stderr
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
    return os.fdopen(descriptor, "a", buffering=1)


if __name__ == "__main__":
    sys.exit(main())
