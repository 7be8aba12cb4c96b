"""What anybody may have written into a base does nothing to the terminal that shows it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_cli import printable

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\b\x7f\u202eevil\u2066"
anything = st.text(st.characters(codec=None))


def dangerous(text: str, allowed: str = "") -> list[str]:
    """The control characters, bidirectional overrides and surrogates of `text`, but for `allowed`."""
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
    """Whatever the text, what remains is newline, tab and what can be seen."""
    assert not dangerous(printable.text(value), "\n\t")


@given(anything)
def test_a_line_is_one_line(value: str) -> None:
    """No character that starts another line is left, not even the ones of Unicode."""
    shown = printable.line(value)
    assert not dangerous(shown)
    assert len(shown.splitlines()) <= 1


@given(st.recursive(anything, lambda inner: st.lists(inner) | st.dictionaries(anything, inner), max_leaves=5))
def test_json_means_the_same_and_is_printable(value: object) -> None:
    """The escapes are JSON's own, so that a program reads what was stored."""
    shown = printable.json(json.dumps(value, ensure_ascii=False))
    assert not dangerous(shown)
    assert json.loads(shown) == value


def test_an_escape_sequence_is_shown_as_its_escape() -> None:
    """Nothing is dropped: whoever looks closely sees what somebody tried."""
    assert printable.text("a\x1b[31mb\x9b") == "a\\x1b[31mb\\x9b"
    assert printable.text("a\u202eb") == "a\\u202eb"


def test_ordinary_text_of_any_script_is_untouched() -> None:
    """Accents, CJK, emoji and line ends are text."""
    assert printable.text("zażółć 知識 🙂\r\nnext\tcell") == "zażółć 知識 🙂\nnext\tcell"


@pytest.mark.parametrize("value", ["a\nb", "a\r\nb", "a \t b", " a b ", "a\u2028b"])
def test_white_space_in_a_line_is_one_space(value: str) -> None:
    """A title with a line break cannot make a second row of a table."""
    assert printable.line(value) == "a b"
