"""Reserves free TCP ports for Slurm's daemons, which read their port numbers from the configuration.

A port is first bound without SO_REUSEADDR, which fails if any process has it, and then made reusable. Slurm's daemons
bind with SO_REUSEADDR and can share the port; another cluster that looks for a free port cannot.
"""

from __future__ import annotations

import errno
import random
import socket

from nodedaemon.core.errors import OperatingError

# Below Linux's ephemeral range (32768 and up): no outgoing connection can take a port while a daemon restarts.
PORT_FIRST = 20_000
PORT_LAST = 32_000
TRIES_MAX = 500


def hold_port() -> socket.socket:
    """Bind one free port; it stays reserved until the socket is closed."""
    # The random start keeps two clusters from trying the same ports.
    start = random.SystemRandom().randrange(PORT_FIRST, PORT_LAST)
    for offset in range(TRIES_MAX):
        port = PORT_FIRST + (start - PORT_FIRST + offset) % (PORT_LAST - PORT_FIRST)
        holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            holder.bind(("", port))
        except OSError as error:
            holder.close()
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            continue
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return holder
    raise OperatingError(
        f"cluster: ports {PORT_FIRST} to {PORT_LAST}: {TRIES_MAX} ports from {start} are in use; "
        "find their processes with ss -ltnp, end some, and start again"
    )
