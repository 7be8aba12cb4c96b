"""The words of a query, marked in a chunk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_contracts.semantics.marking import marked


def marks(text: str, query: str) -> list[str]:
    return [part for part, is_marked in marked(text, query) if is_marked]


@pytest.mark.parametrize(
    ("text", "query", "found"),
    [
        ("Pensions are revalued each April.", "how are pensions revalued", ["Pensions", "revalued"]),
        ("Two dashboards, one Dashboard.", "dashboard", ["dashboards", "Dashboard"]),
        ("The dash stands alone.", "dashboard", []),
        ("It is what it is.", "what is it", ["what"]),
        ("It is so.", "is it", ["It", "is"]),
        ("granite and basalt", "granite -basalt", ["granite"]),
        ("granite and basalt", 'granite -"basalt and"', ["granite"]),
        ("the phrase stands here", '"phrase stands"', ["phrase", "stands"]),
        ("東京に住む", "東京", ["東", "京"]),
        ("a (b [c", "(((", []),
        ("KB_EMBEDDER is set", "KB_EMBEDDER", []),
    ],
)
def test_words_and_their_other_forms_are_marked(text: str, query: str, found: list[str]) -> None:
    assert marks(text, query) == found


@given(st.text(), st.text())
def test_the_parts_are_the_text(text: str, query: str) -> None:
    assert "".join(part for part, _ in marked(text, query)) == text


def test_a_giant_query_takes_no_time() -> None:
    assert marks("granite " * 1_000, "granite " + " ".join(f"word{each}" for each in range(400)))
