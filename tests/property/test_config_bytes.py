"""Any bytes are a configuration or a list of findings with their places; they never cause an exception."""

import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from nodedaemon.config import Config, Rejected, parse
from nodedaemon.config.document import template_text
from nodedaemon.config.finding import Findings
from nodedaemon.config.grammar import Scan
from nodedaemon.config.hostlist import compress, expand
from nodedaemon.config.records import FIELDS, KEYS
from nodedaemon.config.spec import Scope, keys_of

PATH = Path("salus.conf")
NAMES = [key.name for key in KEYS] + [key.name for group in FIELDS.values() for key in keys_of(group)] + list(Scope)
OWN = """
ClusterName=lab SingleHost=yes
LaneReserve=1G
Admins="root"
NodeName=gpu[01-04] Policy=fair \\
  MaxLanes=2
PartitionName=p Nodes=ALL Policy=fifo
DeviceName=host0 Type=host Memory=2G Cores=0-1
Include salus.d/other.conf
"""
DEFAULTS = re.findall(r"^#([A-Z][A-Za-z]+=.*)$", template_text(), re.MULTILINE)
VALID = "\n".join([line for line in DEFAULTS if line.split("=")[0] not in OWN] + [OWN]).encode()
WORDS = [
    "=",
    "\\",
    "\n",
    "#",
    '"',
    " ",
    "[",
    "]",
    "-",
    ",",
    "%",
    "Include ",
    "salus.conf",
    "1G",
    "10%",
    "5:00",
    "-1",
    "yes",
]


def _read(path: Path) -> bytes:
    if path.name != "salus.conf":
        raise FileNotFoundError(2, "No such file or directory")
    return VALID


def _check(data: bytes) -> None:
    loaded = parse(PATH, data, _read)
    line_count = max(data.count(b"\n"), VALID.count(b"\n")) + 1
    if isinstance(loaded, Rejected):
        assert loaded.findings
        for finding in loaded.findings:
            assert finding.problem
            assert 1 <= finding.place.line <= line_count
            assert "\n" not in str(finding)
            str(finding).encode()
    else:
        for node in ("gpu01", "other"):
            loaded.for_node(node)
            loaded.devices_of(node)
        loaded.for_partition("p")


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=300))
def test_any_bytes_are_a_configuration_or_findings(data):
    _check(data)


@settings(deadline=None)
@given(st.lists(st.one_of(st.sampled_from(NAMES + WORDS), st.text(max_size=8)), max_size=40).map("".join))
def test_any_words_of_the_language_are_a_configuration_or_findings(text):
    _check(text.encode("utf-8", errors="surrogatepass"))


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.one_of(st.sampled_from(WORDS), st.text(max_size=12))), max_size=8),
    st.sampled_from(["\n", " ", " \\\n"]),
)
def test_any_value_for_any_key_is_accepted_or_a_finding(pairs, separator):
    _check(separator.join(f"{name}={value}" for name, value in pairs).encode("utf-8", errors="surrogatepass"))


@settings(deadline=None)
@given(st.data())
def test_a_valid_file_with_some_bytes_changed_is_a_configuration_or_findings(data):
    mutated = bytearray(VALID)
    for _ in range(data.draw(st.integers(1, 5))):
        start = data.draw(st.integers(0, len(mutated)))
        stop = start + data.draw(st.integers(0, 20))
        mutated[start:stop] = data.draw(st.binary(max_size=10))
    _check(bytes(mutated))


@settings(deadline=None)
@given(st.sampled_from(KEYS), st.data())
def test_a_written_value_reads_back(key, data):
    """For any text that a key accepts, a file with its written form means the same."""
    texts = [st.sampled_from(WORDS), st.text(max_size=8), st.from_regex(r"[0-9]{1,6}([KMG%]|ms|us|s)?", fullmatch=True)]
    try:
        value = key.kind.parse(data.draw(st.one_of(texts)))
    except ValueError:
        return
    findings = Findings()
    written = f"{key.name}={key.kind.write(value)} Next=1\n".encode()
    ((first, second),) = Scan(_read, findings).lines_of(PATH, written)
    assert not findings.found
    assert key.kind.parse(first.value) == value
    assert (second.key, second.value) == ("Next", "1")


@settings(deadline=None)
@given(st.sets(st.from_regex(r"[a-z]{0,3}[0-9]{0,4}x?", fullmatch=True).filter(bool), min_size=1, max_size=60))
def test_compressed_lists_expand_to_the_same_names(names):
    assert set(expand(compress(names))) == names


def test_the_file_to_be_changed_is_valid():
    loaded = parse(PATH, VALID, lambda _: b"# nothing")
    assert isinstance(loaded, Config), str(loaded)
    assert len(loaded.values) > 70
