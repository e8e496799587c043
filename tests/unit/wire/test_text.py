"""Text that a user chose never acts on the terminal or the log in which somebody else reads it."""

import io
import json

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from nodedaemon.wire import logs
from nodedaemon.wire.text import visible, visible_json, visible_lines

#: Escape sequences, carriage returns, C1, line separators, reversed text, and half a surrogate pair.
HOSTILE = "a\x1b[2Jb\rc\x9b31md\u2028e\u202ef\x7fg\u2066h\x00i\x85j\ud800"


def is_harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_control_characters_are_shown_as_escapes_and_the_rest_stays() -> None:
    shown = r"a\x1b[2Jb\rc\x9b31md\u2028e\u202ef\x7fg\u2066h\x00i\x85j\ud800"
    assert visible(HOSTILE) == shown
    assert visible("Ünïcode 名前 [red] \\n") == "Ünïcode 名前 [red] \\n"
    assert visible_lines("one\ntwo\x1b") == "one\ntwo\\x1b"
    assert visible("one\ntwo") == "one\\ntwo"


@given(st.text(st.characters()) | st.text("\x1b\r\n\x9b\u2028\U000e0001"))
def test_json_keeps_its_meaning(text: str) -> None:
    document = visible_json(json.dumps({"name": text}, ensure_ascii=False, indent=2))
    assert json.loads(document) == {"name": text}
    assert is_harmless(document)


@pytest.mark.parametrize("is_json", [False, True])
def test_a_line_of_the_log_is_one_line_without_control_characters(is_json: bool) -> None:
    stream = io.StringIO()
    before = structlog.get_config()
    try:
        logs.configure(is_json=is_json, stream=stream)
        logs.log.warning("job reports a fault", what=HOSTILE, names=[HOSTILE], count=3, ratio=None)
    finally:
        structlog.configure(**before)
    assert stream.getvalue().count("\n") == 1
    # JSON escapes all but DEL, which does nothing on a terminal.
    assert is_harmless(stream.getvalue().replace("\x7f", "") if is_json else stream.getvalue())
