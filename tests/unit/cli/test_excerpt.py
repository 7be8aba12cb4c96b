"""The part of a passage that `kb search` shows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_cli.excerpt import excerpt

ROWS = "".join(f"| BX-{number} | Bolt {number} |\n" for number in range(1000, 1060))
LOREM = "Lorem ipsum dolor sit amet. " * 20


@pytest.mark.parametrize(
    ("text", "query", "shown"),
    [
        (f"| code | name |\n{ROWS}", "BX-1049", "| code | name |\n…\n| BX-1049 | Bolt 1049 | …"),
        (f"| code | name |\n{ROWS}", "1059", "| code | name |\n…\n| BX-1059 | Bolt 1059 |"),
        (f"# Bolts\n\n| code |\n|-|\n{ROWS}", "1000", "…\n| code |\n…\n| BX-1000 | Bolt 1000 | …"),
        (f"| {'x' * 90} |\n| left | {'y ' * 60}needle |\n", "needle", None),
        (f"{LOREM}\n\nThe needle.\n\n{LOREM}", "needle", "\nThe needle.\n"),
        (f"{LOREM} A needle. {LOREM}", "needle", " A needle. "),
        (f"needle{' ' * 500}{LOREM}", "needle", "needle"),
        (LOREM, "nothing", "Lorem ipsum"),
    ],
)
def test_an_excerpt_has_the_words_of_the_query(text: str, query: str, shown: str | None) -> None:
    part = excerpt(text, query, 100)
    assert (shown or "needle") in part
    assert shown is None or not shown.startswith(("|", "…")) or part == shown
    assert part.startswith("…") is (not text.startswith(part[:6]))


@given(st.text(min_size=1), st.text(), st.integers(10, 60))
def test_an_excerpt_is_bounded_and_made_of_the_text(text: str, query: str, most: int) -> None:
    part = excerpt(text, query, most)
    assert all(piece.strip() in text for line in part.splitlines() for piece in line.split("…"))
    assert bool(part) is bool(text.strip())
    assert len(part) <= 2 * most + len("…\n… …")
