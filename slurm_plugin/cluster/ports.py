"""Free TCP ports on loopback, held from the moment they are picked.

Slurm takes port numbers from its configuration, so each must be known before the daemon that will listen on it runs. A
port is bound here without SO_REUSEADDR, which fails if anybody has it, and only then made reusable: Slurm's daemons
bind with SO_REUSEADDR and so may join it, while another cluster that looks for a port may not.
"""

from __future__ import annotations

import errno
import random
import socket

from nodedaemon.core.errors import OperatingError

# Below Linux's ephemeral range (32768 and up), so that no outgoing connection takes a port while a daemon restarts.
PORT_FIRST = 20_000
PORT_LAST = 32_000
TRIES_MAX = 500


def hold_port() -> socket.socket:
    """Bind one free port; it stays ours until the socket is closed."""
    # Where to look is no secret: a random start only keeps two clusters from trying the same ports in turn.
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
        f"cluster: ports {PORT_FIRST} to {PORT_LAST}: in use, {TRIES_MAX} tried from {start}; "
        "end what listens there (ss -ltnp shows it), then start again"
    )


def port_of(holder: socket.socket) -> int:
    port: int = holder.getsockname()[1]
    return port
