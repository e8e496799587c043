"""The parts of the SPANK plugin that need no Slurm, built with sanitizers: SHA-256 and the reader of answers."""

import hashlib
import json
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.attacker import ATTACKER, start_attack

ROOT = Path(__file__).parents[3]
SPANK = ROOT / "slurm_plugin" / "spank"
FILES = ("sha256.c", "reply.c", "client.c")


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    program = tmp_path_factory.mktemp("spank") / "parts"
    sources = [ROOT / "tests" / "support" / "spank_parts.c", *(SPANK / name for name in FILES)]
    subprocess.run(
        ["gcc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-g", "-fsanitize=address,undefined",
         "-fno-sanitize-recover=all", f"-I{SPANK}", "-o", program, *sources],
        check=True,
    )  # fmt: skip

    def run(*argv, text):
        done = subprocess.run([program, *argv], input=text, capture_output=True, check=False)
        assert done.stderr == b""
        return done.returncode, done.stdout

    return run


FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("size", [0, 1, 55, 56, 63, 64, 65, 119, 120, 1000])
def test_the_hash_is_sha_256(parts, size):
    data = bytes(range(256)) * 4
    assert parts("hash", text=data[:size])[1].decode() == hashlib.sha256(data[:size]).hexdigest()


# Without NUL, which an environment cannot contain, and without surrogates, which our paths never contain.
TEXTS = st.text(st.characters(min_codepoint=1, max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=40)


@FEW
@given(st.lists(TEXTS, max_size=5), TEXTS, st.dictionaries(st.sampled_from(["a", "b"]), st.integers() | TEXTS))
def test_answers_are_read_as_they_were_written(parts, items, refusal, others):
    for is_ascii in (True, False):
        answer = json.dumps({**others, "ok": True, "env": items, "refuse": refusal}, ensure_ascii=is_ascii).encode()
        assert parts("text", "refuse", text=answer) == (0, refusal.encode())
        assert parts("list", "env", text=answer) == (0, b"".join(item.encode() + b"\0" for item in items))


@FEW
@given(st.binary(max_size=80) | st.text('{}[]":,\\u0aek tru', max_size=60).map(str.encode))
def test_nonsense_causes_no_memory_fault(parts, nonsense):
    nonsense = nonsense.replace(b"\0", b"")
    parts("list", "env", text=nonsense)
    parts("text", "refuse", text=nonsense)


def test_a_deeply_nested_or_truncated_answer_is_refused(parts):
    assert parts("text", "refuse", text=b'{"a": ' + b"[" * 200 + b']}, "refuse": "x"}')[0] == 1
    assert parts("text", "refuse", text=b'{"refuse": "half')[0] == 1
    assert parts("list", "env", text=b'{"env": ["a", 3]}')[0] == 1


def test_the_plugin_exports_only_what_slurm_looks_for(tmp_path):
    subprocess.run(["make", "-s", "-C", SPANK, f"OUT={tmp_path}"], check=True, capture_output=True)
    names = subprocess.run(
        ["nm", "-D", "--defined-only", tmp_path / "salus_spank.so"], check=True, capture_output=True, text=True
    )
    exported = {line.split()[-1] for line in names.stdout.splitlines()}
    listed = {word.rstrip(";") for word in (SPANK / "exports.map").read_text().split() if word.endswith(";")} - {
        "*",
        "}",
    }
    assert exported == listed


# Serves one request at argv[1], under a uid that the kernel reports to the client.
SERVER = """
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1])
listener.listen()
print("listening", flush=True)
peer, _ = listener.accept()
asked = peer.recv(4096)
print(asked.decode(), flush=True)
if asked:
    peer.send(b"answer")
"""


@pytest.mark.parametrize(
    ("uid", "expected"), [(0, (0, b"answer", "hello\n")), (ATTACKER, (1, b"Operation not permitted", "\n"))]
)
def test_only_a_daemon_of_root_or_of_the_same_user_is_asked(parts, uid, expected):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        with start_attack(SERVER, f"{folder}/s", uid=uid) as server:
            try:
                assert server.stdout.readline() == "listening\n"
                code, output = parts("ask", f"{folder}/s", text=b"hello")
                asked = server.stdout.readline()
            finally:
                server.kill()
    assert (code, output, asked) == expected
