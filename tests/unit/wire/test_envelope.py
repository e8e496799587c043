"""A request is read as it was written. Python, the hooks and Lua read and write the same envelope."""

import re
import socket
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodedaemon.core.errors import OperatingError, PeerError, RequestError
from nodedaemon.wire.control import TaskRequest
from nodedaemon.wire.envelope import (
    DEPTH_MAX,
    FAILURE_KINDS,
    PACKET_BYTES_MAX,
    REQUEST_BYTES_MAX,
    Failure,
    NotFoundError,
    NotPermittedError,
    Request,
    UnreachableError,
    exchange,
    read_answer,
    read_request,
    write_answer,
    write_request,
)
from tests.support.lua import JobSubmit

ROOT = Path(__file__).parents[3]
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
NAMES = TEXT.filter(lambda name: name != "verb")
VALUES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT | st.lists(TEXT, max_size=3)
FIELDS = st.dictionaries(NAMES, VALUES, max_size=4)
FAILURES = st.builds(Failure, why=TEXT.filter(bool), kind=st.sampled_from([kind for kind, _ in FAILURE_KINDS]))
ANSWERS = FAILURES.map(write_answer) | FIELDS.map(lambda fields: write_answer({**fields, "ok": True}))
SETTINGS = """return {{ socket = "{path}", timeout_s = 5, timeouts_max = 3, pause_s = 10, on_loss = "refuse",
  whole_device = "shard:48" }}"""


@given(TEXT, FIELDS)
def test_a_request_is_read_as_it_was_written(verb, fields):
    assert read_request(write_request({"verb": verb, **fields})) == Request(verb, fields)


@pytest.mark.parametrize("line", [b"", b"nonsense", b"[]", b"7", b'{"verb": 7}', b'{"verb"', b"\xff\xfe"])
def test_a_line_that_is_not_a_request_is_refused(line):
    with pytest.raises(RequestError, match="request refused"):
        read_request(line)


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a": ', b"}")])
def test_a_request_with_too_many_levels_is_refused_before_it_is_parsed(opening, closing):
    def nested(levels):
        return b'{"verb": "x", "a": ' + opening * (levels - 1) + b"1" + closing * (levels - 1) + b"}"

    assert read_request(nested(DEPTH_MAX)).verb == "x"
    with pytest.raises(RequestError, match="levels"):
        read_request(nested(DEPTH_MAX + 1))
    with pytest.raises(RequestError, match="levels"):
        read_request(nested(100_000)[:200_000])


@pytest.mark.parametrize("text", ["[" * 100, '\\"' * 3 + "{" * 100, "\\\\" + "[" * 100, '"[{"' * 50])
def test_brackets_in_a_text_and_side_by_side_are_no_levels(text):
    fields = {"a": text, "b": [[] for _ in range(100)], "c": [{"d": "]"}] * 100}
    assert read_request(write_request({"verb": "x", **fields})).fields == fields


def test_bytes_that_are_not_utf_8_are_replaced_in_a_request():
    assert read_request(b'{"verb": "submit", "name": "a\xff"}').fields == {"name": "a\ufffd"}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NotFoundError("x"), "not_found"),
        (NotPermittedError("x"), "not_permitted"),
        (UnreachableError("x"), "unreachable"),
        (RequestError("x"), "usage"),
        (OperatingError("x"), "failed"),
        (PeerError("x"), "failed"),
    ],
)
def test_an_error_keeps_its_kind_over_the_wire(error, kind):
    failure = Failure.of(error)
    assert (failure.why, failure.kind) == ("x", kind)
    with pytest.raises(dict(FAILURE_KINDS)[kind], match="x"):
        read_answer(write_answer(failure))


@contextmanager
def server(path, *answers):
    """Serves one connection: one answer per request line. Yields the lines."""
    lines = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve():
            peer, _ = listener.accept()
            with peer, peer.makefile("rb") as requests:
                for answer in answers:
                    lines.append(requests.readline())
                    peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield lines
        thread.join(10)


@pytest.mark.parametrize("answer", [b"", b'{"ok": true', b"nonsense\n", b"[]\n"])
def test_a_line_that_is_not_an_answer_raises_unreachable_error(tmp_path, answer):
    with server(tmp_path / "s", answer), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(tmp_path / "s"))
        with pytest.raises(UnreachableError, match="here: "):
            exchange(connection, "here", {"verb": "ping"})


@pytest.fixture(scope="module")
def hook():
    sys.path.insert(0, str(ROOT / "slurm_plugin" / "hooks"))
    import hook

    sys.path.pop(0)
    return hook


@given(fields=FIELDS)
def test_a_hook_writes_the_same_request(hook, fields):
    assert read_request(hook.write_request({"verb": "job_end", **fields})) == Request("job_end", fields)


@given(message=ANSWERS | st.binary(max_size=20))
def test_a_hook_reads_the_same_answer(hook, message):
    def by_hook():
        why = hook.failure_of(message)
        return f"failed: {why}" if why else "good"

    def by_envelope():
        try:
            read_answer(message)
        except (RequestError, OperatingError) as error:
            return f"failed: {error}"
        return "good"

    assert outcome(by_hook) == outcome(by_envelope)


def outcome(read):
    try:
        return read()
    except ValueError:
        return "no answer"


def test_hooks_and_the_spank_plugin_have_the_same_size_bound(hook):
    assert hook.PACKET_BYTES_MAX == PACKET_BYTES_MAX
    header = (ROOT / "slurm_plugin" / "spank" / "salus_spank.h").read_text()
    assert re.search(r"#define SALUS_PACKET_MAX +(\d+)", header)[1] == str(PACKET_BYTES_MAX)


def spank_requests():
    """The requests that the SPANK plugin formats, with every value filled in."""
    source = (ROOT / "slurm_plugin" / "spank" / "dispatch.c").read_text()
    for literals in re.findall(r'snprintf\(request, sizeof request,\s*((?:"(?:[^"\\]|\\.)*"\s*)+),', source):
        text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals)).replace('\\"', '"')
        yield re.sub(r"%[ud]", "7", text).replace("%s", "task_exit").encode()


def test_the_spank_plugin_writes_the_same_request():
    requests = [read_request(one) for one in spank_requests()]
    assert {request.verb for request in requests} == {"task_env", "task_exit"}
    for request in requests:
        assert set(request.fields) <= set(TaskRequest.__struct_fields__)
        msgspec.convert(request.fields, TaskRequest, strict=False)


def test_lua_sends_requests_and_shows_refusals(tmp_path):
    refusal = write_answer(Failure(why="salus: submit: no room", kind="usage"))
    notice = write_answer({"ok": True, "say": "it is measured", "set": {"tres_per_node": "gres:salus:1,gres:shard:7"}})
    with server(tmp_path / "s", refusal, notice) as lines:
        script = JobSubmit(tmp_path, SETTINGS.format(path=tmp_path / "s"))
        job = {"tres_per_node": "gres:salus:1", "name": 'a"\\\n\u00fc\U0001f600', "time_limit": 30}
        refused, admitted = script.submit(**job), script.submit(**job)
        script.close()
    assert (refused["code"], refused["said"]) == (-1, "salus: submit: no room")
    assert (admitted["code"], admitted["said"]) == (0, "it is measured")
    assert admitted["record"]["tres_per_node"].endswith("shard:7")
    request = read_request(lines[0])
    assert (request.verb, request.fields["uid"], request.fields["job"]) == ("submit", 5, job)
    assert all(len(line) < REQUEST_BYTES_MAX for line in lines)


@given(fields=FIELDS)
def test_a_message_is_one_line_whatever_it_contains(fields):
    for message in (write_request({**fields, "verb": "x"}), write_answer({**fields, "ok": True})):
        assert (message.count(b"\n"), message[-1:]) == (1, b"\n")
