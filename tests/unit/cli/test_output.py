"""One answer, three readers: a person at a terminal, a pipe, a program."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest

from kb_cli.output import Output
from tests.support.stack import clean_environment

COLUMNS = ("id", "title")
ROWS = [[1, "plain"], [2, "[red]not markup[/red] :smile:\x1b[31m"], [3, None]]


class Terminal(io.StringIO):
    """A stream that a person looks at."""

    def isatty(self) -> bool:
        """It is one."""
        return True


def test_a_table_into_a_pipe_is_tab_separated_lines_without_colour() -> None:
    """A header, then a line a row; nothing that `cut` would stumble over."""
    pipe = io.StringIO()
    Output(stdout=pipe).table(COLUMNS, ROWS)
    assert pipe.getvalue().splitlines() == [
        "id\ttitle",
        "1\tplain",
        "2\t[red]not markup[/red] :smile:\\x1b[31m",
        "3\t",
    ]


def test_a_table_on_a_terminal_shows_the_stored_text_and_no_markup() -> None:
    """What looks like markup, an emoji code or an escape sequence is text."""
    terminal = Terminal()
    Output(stdout=terminal).table(COLUMNS, ROWS, title="[b]t[/b]")
    assert "[red]not markup[/red] :smile:\\x1b[31m" in terminal.getvalue()
    assert "[b]t[/b]" in terminal.getvalue()


def test_a_table_wider_than_the_terminal_is_written_row_by_row_with_nothing_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At 80 columns an id of 36 characters stays whole, whatever stands beside it."""
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


def test_a_style_shows_on_a_terminal_only() -> None:
    """Colour is for eyes."""
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
    """So that it never becomes part of an answer."""
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
