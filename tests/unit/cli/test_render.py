"""The same rows in every format."""

import io
import json

import pytest

from cli.output.render import Column, Form, form_of, write_rows

COLUMNS = [Column("job", "JobID"), Column("bytes", "Bytes", "right"), Column("gated", "Gated")]
ROWS = [
    {"job": "12", "bytes": 1024, "gated": True},
    {"job": "[red]a|b\nc", "bytes": None, "gated": False, "unknown": "left out"},
]


def _written(form: Form) -> str:
    stream = io.StringIO()
    write_rows(ROWS, COLUMNS, form, stream=stream)
    return stream.getvalue()


def test_json_keeps_types_and_only_the_columns():
    assert json.loads(_written(Form.JSON)) == [
        {"job": "12", "bytes": 1024, "gated": True},
        {"job": "[red]a|b\nc", "bytes": None, "gated": False},
    ]


def test_parsable_rows_are_one_line_with_a_fixed_number_of_bars():
    assert _written(Form.PARSABLE) == "JobID|Bytes|Gated\n12|1024|yes\n[red]a/b\\nc||no\n"


def test_a_table_shows_markup_as_text_and_has_no_colour_in_a_pipe():
    text = _written(Form.TABLE)
    assert "[red]a|b" in text
    assert "\x1b" not in text
    assert text.splitlines()[0].split() == ["JobID", "Bytes", "Gated"]


@pytest.mark.parametrize("form", Form)
def test_a_name_does_not_act_on_the_terminal(form):
    name = "\x1b[2J\r\x9bb\u2028\u202e\x7f"
    stream = io.StringIO()
    write_rows([{"job": name}], COLUMNS, form, stream=stream)
    assert all(line.isprintable() for line in stream.getvalue().split("\n"))
    if form is Form.JSON:
        assert json.loads(stream.getvalue())[0]["job"] == name
    else:
        assert r"\x1b[2J\r\x9bb\u2028\u202e\x7f" in stream.getvalue()


def test_no_color_is_honoured_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    write_rows(ROWS, COLUMNS, Form.TABLE, stream=stream)
    assert "\x1b[3" not in stream.getvalue()


@pytest.mark.parametrize(
    ("flags", "form"),
    [({}, Form.TABLE), ({"parsable": True}, Form.PARSABLE), ({"parsable": True, "json": True}, Form.JSON)],
)
def test_flags_choose_the_form(flags, form):
    assert form_of(**flags) is form
