"""Output for a terminal, a pipe and a program; untrusted text cannot control the terminal."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_cli.add import Result
from kb_cli.output import Output, printable_json, printable_line, printable_text
from kb_load.processes import clean_environment

COLUMNS = ("id", "title")
ROWS: list[list[object]] = [[1, "plain"], [2, "[red]not markup[/red] :smile:\x1b[31m"], [3, None]]


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_table_into_a_pipe_is_tab_separated_lines_without_colour() -> None:
    pipe = io.StringIO()
    Output(stdout=pipe).table(COLUMNS, ROWS)
    assert pipe.getvalue().splitlines() == [
        "id\ttitle",
        "1\tplain",
        "2\t[red]not markup[/red] :smile:\\x1b[31m",
        "3\t",
    ]


def test_a_table_on_a_terminal_shows_the_stored_text_and_no_markup() -> None:
    terminal = Terminal()
    Output(stdout=terminal).table(COLUMNS, ROWS, title="[b]t[/b]")
    assert "[red]not markup[/red] :smile:\\x1b[31m" in terminal.getvalue()
    assert "[b]t[/b]" in terminal.getvalue()


def test_a_table_wider_than_the_terminal_is_written_row_by_row_with_nothing_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At 80 columns an id of 36 characters stays whole, whatever the other columns hold."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    identifier = "119d823a-5422-4f1c-8e2b-0b8f3f2f9b11"
    terminal = Terminal()
    Output(stdout=terminal).table(
        ("job", "status", "why", "created", "id"),
        [
            ["first", "failed", "a long reason " * 8, None, identifier],
            [identifier, "completed", "", "now", ""],
        ],
    )
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(identifier in line for line in lines) == 2
    assert "…" not in terminal.getvalue()
    assert lines[-1].strip() == "status completed  created now"


def test_a_long_text_wraps_in_its_column_and_times_are_for_people_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    terminal, pipe = Output(stdout=Terminal()), Output(stdout=io.StringIO())
    for out in (terminal, pipe):
        moment = out.when("2026-11-28T06:52:01Z")
        out.table(("id", "title", "updated"), [[1, "a long title " * 12, moment], [2, "short", moment]])
    lines = terminal.stdout.getvalue().splitlines()  # type: ignore[attr-defined]
    assert (max(map(len, lines)) <= 80, len(lines) > 5) == (True, True)
    assert [line.split()[-2:] for line in lines if "2026" in line] == [["2026-11-28", "06:52"]] * 2
    assert "2026-11-28T06:52:01Z" in pipe.stdout.getvalue()  # type: ignore[attr-defined]
    assert terminal.when("a damaged line") == "a damaged line"


def test_a_style_shows_on_a_terminal_only() -> None:
    pipe = io.StringIO()
    Output(stdout=pipe).text("done", style="green")
    assert pipe.getvalue() == "done\n"


def test_json_is_one_document_with_nothing_beside_it() -> None:
    terminal = Terminal()
    out = Output(as_json=True, stdout=terminal)
    out.document({"text": "a\x9b31m"})
    assert json.loads(terminal.getvalue()) == {"text": "a\x9b31m"}
    assert "\x9b" not in terminal.getvalue()
    assert not out.is_terminal


def test_a_note_goes_to_stderr_on_one_line() -> None:
    """It never becomes part of a result."""
    pipe, errors = io.StringIO(), io.StringIO()
    Output(stdout=pipe, stderr=errors).note("one\ntwo")
    assert (pipe.getvalue(), errors.getvalue()) == ("", "one two\n")


@pytest.mark.process
def test_a_pipe_costs_no_import_of_rich() -> None:
    """Scripts call the command in loops."""
    script = "import sys; from kb_cli.main import main; main(['config']); sys.exit('rich' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.DEVNULL, env=clean_environment(), check=False
    )
    assert done.returncode == 0


anything = st.text(st.characters(codec=None))


def dangerous(text: str, allowed: str = "") -> list[str]:
    """The control characters, bidirectional overrides and surrogates of `text`, without `allowed`."""
    return [
        char
        for char in text
        if char not in allowed
        and (
            ord(char) < 32
            or 0x7F <= ord(char) < 0xA0
            or char in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
            or 0xD800 <= ord(char) < 0xE000
        )
    ]


@given(anything)
def test_a_text_keeps_its_lines_and_tabs_and_no_other_control_character(value: str) -> None:
    assert not dangerous(printable_text(value), "\n\t")


@given(anything)
def test_a_line_is_one_line(value: str) -> None:
    """All line separators are replaced, including those of Unicode."""
    shown = printable_line(value)
    assert not dangerous(shown)
    assert len(shown.splitlines()) <= 1


@given(st.recursive(anything, lambda inner: st.lists(inner) | st.dictionaries(anything, inner), max_leaves=5))
def test_json_means_the_same_and_is_printable(value: object) -> None:
    """The escapes are those of JSON, so that a program reads the stored text."""
    shown = printable_json(json.dumps(value, ensure_ascii=False))
    assert not dangerous(shown)
    assert json.loads(shown) == value


def test_a_file_name_that_is_not_utf_8_is_json_too() -> None:
    out = Output(as_json=True, stdout=io.StringIO())
    out.document([Result("\udcff.md", "failed")])
    assert isinstance(out.stdout, io.StringIO)
    assert json.loads(out.stdout.getvalue())[0]["path"] == "\udcff.md"


def test_an_escape_sequence_is_shown_as_its_escape() -> None:
    """Nothing is dropped, so that an attack stays visible."""
    assert printable_text("a\x1b[31mb\x9b") == "a\\x1b[31mb\\x9b"
    assert printable_text("a\u202eb") == "a\\u202eb"


def test_ordinary_text_of_any_script_is_untouched() -> None:
    assert printable_text("zażółć 知識 🙂\r\nnext\tcell") == "zażółć 知識 🙂\nnext\tcell"


@pytest.mark.parametrize("value", ["a\nb", "a\r\nb", "a \t b", " a b ", "a\u2028b"])
def test_white_space_in_a_line_is_one_space(value: str) -> None:
    """A title with a line break cannot make a second row of a table."""
    assert printable_line(value) == "a b"
