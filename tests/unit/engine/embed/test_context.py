"""The context that a chunk is embedded with."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kb_engine.embed.context import Passage, in_context


def fits(_text: str) -> bool:
    return True


def room_for(characters: int) -> Callable[[str], bool]:
    return lambda text: len(text) <= characters


BEES = "# Bees keep warm in winter\nby shivering."


@pytest.mark.parametrize(
    ("title", "heading", "text", "above"),
    [
        ("Handbook", "Pensions > Revaluation", "Each April.", "Handbook\nPensions > Revaluation\n"),
        ("Handbook", None, "Each April.", "Handbook\n"),
        ("", "Fees\n| No | Sum |", "| 1 | 2 |", "Fees > No | Sum\n"),
        ("", "\n| No |", "| 1 | 2 |", "No\n"),
        ("Bees keep warm", None, BEES, ""),
        ("Bees keep…", None, BEES, ""),
        ("  Bees   keep\nwarm ", None, BEES, ""),
        ("", None, "text", ""),
    ],
    ids=[
        "title and headings", "a title", "a header row on the line of the headings", "a header row",
        "a title that begins the text", "one that is cut", "one with other blanks", "no name",
    ],
)  # fmt: skip
def test_title_and_headings_stand_above_the_text(
    title: str, heading: str | None, text: str, above: str
) -> None:
    assert in_context(Passage(title, heading, text), fits) == above + text


def test_the_text_is_whole_whatever_its_context_takes() -> None:
    """Title and headings are added as far as there is room beside it."""
    passage = Passage("A title", "A heading", "text")
    for room, expected in ((18, "A title\nA heading\ntext"), (17, "A title\ntext"), (7, "text")):
        assert in_context(passage, room_for(room)) == expected


def test_a_long_title_is_cut() -> None:
    assert len(in_context(Passage("x" * 500, "y" * 500, "text"), fits)) == 200 + 1 + 200 + 1 + 4
