"""The kind of a daemon's refusal determines the exit code."""

import json
import socket
import threading

import pytest

from cli.entry import ExitCode, FailedError, exit_code_of
from cli.remote.salusd import DaemonClient
from nodedaemon.core.errors import SalusError
from nodedaemon.wire.control import NodeStatus
from nodedaemon.wire.envelope import UnreachableError


@pytest.fixture
def answering(tmp_path):
    """A function that serves one fixed answer at a socket and returns the path of the socket."""
    threads = []

    def serve(answer):
        path = tmp_path / "control.sock"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()

        def work():
            peer, _ = listener.accept()
            with peer, listener:
                peer.recv(4096)
                peer.sendall(answer)

        threads.append(threading.Thread(target=work))
        threads[-1].start()
        return path

    yield serve
    for thread in threads:
        thread.join(10)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("usage", ExitCode.USAGE),
        ("not_found", ExitCode.NOT_FOUND),
        ("not_permitted", ExitCode.NOT_PERMITTED),
        ("failed", ExitCode.FAILED),
    ],
)
def test_a_refusal_has_the_exit_code_of_its_kind(answering, kind, code):
    client = DaemonClient(answering(json.dumps({"ok": False, "why": "because", "kind": kind}).encode() + b"\n"))
    with pytest.raises(SalusError, match="because") as raised:
        client.ask("anything")
    client.close()
    assert exit_code_of(raised.value) is code


def test_no_socket_or_an_invalid_answer_means_that_the_daemon_is_unreachable(answering, tmp_path):
    with pytest.raises(UnreachableError, match="is it running"):
        DaemonClient(tmp_path / "nobody.sock")
    client = DaemonClient(answering(b"hello there\n"))
    with pytest.raises(UnreachableError, match="check its address"):
        client.ask("ping")
    client.close()


def test_an_answer_of_another_release_is_an_error_that_says_so(answering):
    client = DaemonClient(answering(b'{"ok": true}\n'))
    with pytest.raises(FailedError, match="release"):
        client.ask_for(NodeStatus, "status")
    client.close()
