"""Requests to salus-admitd over TCP: a refusal determines the exit code, and an invalid answer means unreachable."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from cli.remote import admitd
from nodedaemon.config.keys import Settings
from nodedaemon.core.errors import OperatingError, RequestError
from nodedaemon.wire.envelope import NotFoundError, NotPermittedError, UnreachableError


@pytest.fixture(autouse=True)
def signed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_plugin.admitd.credentials.sign", lambda message, user: b"MUNGE:x: " + message)


def settings_of(port: int) -> Settings:
    return replace(Settings(), admission=replace(Settings().admission, host="127.0.0.1", port=port))


@contextmanager
def server(answer: bytes) -> Iterator[tuple[Settings, list[bytes]]]:
    """A server that receives one request and sends `answer`; yields its settings and the requests."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            peer, _ = listener.accept()
            with peer, peer.makefile("rb") as lines:
                received.append(lines.readline())
                peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield settings_of(listener.getsockname()[1]), received
        thread.join(10)


def test_a_request_is_signed_and_its_answer_is_returned() -> None:
    with server(b'{"ok": true, "answer": [1]}\n') as (settings, received):
        assert admitd.ask_admission(settings, {"verb": "report"})["answer"] == [1]
    assert received == [b'MUNGE:x: {"verb": "report"}\n']


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("not_found", NotFoundError),
        ("not_permitted", NotPermittedError),
        ("usage", RequestError),
        ("unreachable", UnreachableError),
        ("failed", OperatingError),
        ("something new", OperatingError),
    ],
)
def test_a_refusal_raises_the_matching_error(kind: str, error: type[Exception]) -> None:
    answer = json.dumps({"ok": False, "kind": kind, "why": "because"}).encode() + b"\n"
    with server(answer) as (settings, _), pytest.raises(error, match="because"):
        admitd.ask_admission(settings, {"verb": "report"})


@pytest.mark.parametrize("answer", [b"", b'{"ok": true', b"nonsense\n", b"[]\n"])
def test_an_invalid_answer_means_that_the_server_is_unreachable(answer: bytes) -> None:
    with server(answer) as (settings, _), pytest.raises(UnreachableError, match="salus-admitd"):
        admitd.ask_admission(settings, {"verb": "report"})


def test_a_server_that_does_not_run_or_is_not_configured_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(UnreachableError, match=r"salus-admitd: 127\.0\.0\.1"):
        admitd.ask_admission(settings_of(port), {"verb": "report"})
    with pytest.raises(UnreachableError, match="AdmissionPort is 0"):
        admitd.ask_admission(settings_of(0), {"verb": "report"})

    def fail(_message: object, _user: object) -> object:
        raise UnreachableError("credential: munge: no such file; is munged running on this host?")

    monkeypatch.setattr("slurm_plugin.admitd.credentials.sign", fail)
    with pytest.raises(UnreachableError, match="is munged running"):
        admitd.ask_admission(settings_of(port), {"verb": "report"})
