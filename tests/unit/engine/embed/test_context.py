"""The context that a chunk is embedded with."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kb_engine.embed.context import Passage, in_context


def fits(_text: str) -> bool:
    return True


def room_for(characters: int) -> Callable[[str], bool]:
    return lambda text: len(text) <= characters


def test_title_and_headings_stand_above_the_text() -> None:
    passage = Passage("Handbook", "Pensions > Revaluation", "Each April by the index of prices.")
    assert in_context(passage, fits) == "Handbook\nPensions > Revaluation\nEach April by the index of prices."
    assert in_context(Passage("Handbook", None, "Each April."), fits) == "Handbook\nEach April."


@pytest.mark.parametrize(("heading", "line"), [("Fees\n| No | Sum |", "Fees > No | Sum"), ("\n| No |", "No")])
def test_a_header_row_follows_the_headings_on_their_line(heading: str, line: str) -> None:
    assert in_context(Passage("", heading, "| 1 | 2 |"), fits) == f"{line}\n| 1 | 2 |"


@pytest.mark.parametrize(
    "title", ["Bees keep warm", "Bees keep…", "  Bees   keep\nwarm "], ids=["whole", "cut", "blanks"]
)
def test_a_title_that_begins_the_text_is_not_repeated(title: str) -> None:
    text = "# Bees keep warm in winter\nby shivering."
    assert in_context(Passage(title, None, text), fits) == text


def test_the_text_is_whole_whatever_its_context_takes() -> None:
    """Title and headings are added as far as there is room beside it."""
    passage = Passage("A title", "A heading", "text")
    for room, expected in ((18, "A title\nA heading\ntext"), (17, "A title\ntext"), (7, "text")):
        assert in_context(passage, room_for(room)) == expected


def test_a_long_title_is_cut() -> None:
    assert len(in_context(Passage("x" * 500, "y" * 500, "text"), fits)) == 200 + 1 + 200 + 1 + 4


def test_a_passage_without_a_name_is_its_text() -> None:
    assert in_context(Passage("", None, "text"), fits) == "text"
