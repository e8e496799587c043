"""A munge credential for salus-admitd is of no use to anybody else: only SlurmUser can decode it."""

import json
import shlex
import socket

import pytest

from nodedaemon.wire.envelope import write_request
from tests.support.cluster_fixtures import ROOT, SLURM_ROOT

SIGN = """
import sys
from slurm_plugin.admitd.credentials import sign
sys.stdout.buffer.write(sign(sys.argv[1].encode(), "slurm"))
"""


def sign(lab, user):
    """The line that a command of the user sends."""
    message = write_request({"verb": "ping"}).decode()
    python = lab.cluster.python
    return lab.ask(python, "-c", SIGN, message, user=user, PYTHONPATH=str(lab.cluster.plan.shown(ROOT)))


def decode(lab, credential, user):
    command = f"printf %s {shlex.quote(credential)} | unmunge --socket={lab.cluster.plan.munge_socket}"
    return lab.run("sh", "-c", command, user=user)


@pytest.mark.skipif(SLURM_ROOT is not None, reason="our commands do not run in another root file system")
def test_only_salus_admitd_can_decode_a_credential(lab):
    line = sign(lab, "games")
    for user in ("news", "games", None):
        refused = decode(lab, line.partition(" ")[0], user)
        assert refused.returncode != 0
        assert "Unauthorized credential" in refused.stderr, refused.stderr
    with socket.create_connection(("127.0.0.1", lab.cluster.plan.ports.admission), timeout=30) as peer:
        peer.sendall(line.encode())
        answer = json.loads(peer.makefile().readline())
    assert (answer["ok"], answer["user"]) == (True, "games"), answer
