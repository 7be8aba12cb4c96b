"""Phrases and exclusions: matches are found at any rank, in every index."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kb_contracts.semantics.query import Wording
from kb_engine.store.wording import FIRST, MOST
from tests.support.stores import Base, axis, between, meaning, new_note, prepared

pytestmark = pytest.mark.process  # most create a base of 700 chunks, in each index

MODES = ("fts", "vector", "hybrid")
DEEP = 700
"""Number of chunks that every ranking prefers, more than the first look covers."""


def ranked(text: str, mode: str, **changes: Any) -> dict[str, Any]:
    return {"text": text, "mode": mode, "vector": None if mode == "fts" else axis(0), **changes}


@cache
def near(count: int) -> list[NDArray[np.float32]]:
    """Vectors around the query's, all nearer to it than the vector of the wanted chunk."""
    around = [meaning(str(number)) for number in range(10 * count)]
    return [vector for vector in around if vector[0] > 0.2][:count]


@pytest.fixture
async def deep(base: Base) -> Base:
    """Many chunks near the query with the words of a phrase; the one with the phrase is far, and long."""
    assert FIRST < DEEP < MOST
    texts = [f"peer reset connection {number}" for number in range(DEEP)]
    await base.note(*texts, title="preferred", vectors=near(DEEP))
    await base.note(f"a connection reset {'by others ' * 200}", title="wanted", vectors=[between(0, 7, 0.1)])
    return base


async def german(base: Base, *texts: str, **changes: Any) -> None:
    await base.ingest(new_note("".join(texts)), prepared(*texts, language="de", **changes))


async def test_a_phrase_that_is_deep_in_the_ranking_is_found(deep: Base, subtests: pytest.Subtests) -> None:
    wording = Wording(["connection reset"])
    for mode in MODES:
        with subtests.test(mode=mode):
            found = await deep.find(**ranked("connection reset", mode, wording=wording, top=1))
            assert [result.document.title for result in found.results] == ["wanted"]
            assert found.total >= (mode != "vector")


async def test_a_word_that_nearly_all_hold_is_excluded(deep: Base, subtests: pytest.Subtests) -> None:
    wording = Wording(excluded=["peer"])
    for mode in MODES:
        with subtests.test(mode=mode):
            found = await deep.find(**ranked("connection reset", mode, wording=wording, top=1))
            assert [result.document.title for result in found.results] == ["wanted"]


async def test_the_total_is_that_of_all_texts_or_a_lower_bound(deep: Base) -> None:
    """An index that does not know the order of words checks no further texts once enough have passed."""
    wording = Wording(["reset connection"])
    found = await deep.find(**ranked("reset connection", "fts", wording=wording, top=1))
    assert found.total == DEEP if found.total_exact else 1 <= found.total < DEEP


async def test_in_a_small_base_the_total_is_exact(base: Base, subtests: pytest.Subtests) -> None:
    """For any words of the index: here one word is spelled differently."""
    await base.note("a connection reset", "connection ﬁrst, then a reset", title="1", vectors=[axis(0)] * 2)
    await base.note("a connection ﬁrst", title="2", vectors=[axis(0)])
    for mode in MODES:
        with subtests.test(mode=mode):
            found = await base.find(
                **ranked("connection reset first", mode, wording=Wording(["connection first"]))
            )
            assert sorted(result.chunk.text for result in found.results) == [
                "a connection ﬁrst",
                "connection ﬁrst, then a reset",
            ]
            assert (found.total, found.total_exact) == (2, True)


async def test_scores_are_those_of_a_search_without_phrases(deep: Base, subtests: pytest.Subtests) -> None:
    wording = Wording(["a connection reset by others"])
    for mode in MODES:
        with subtests.test(mode=mode):
            query = ranked("a connection reset by others", mode, explain=True)
            (result,) = (await deep.find(**query, wording=wording, top=5)).results
            everything = (await deep.find(**query, top=DEEP + 1)).results
            (same,) = [other for other in everything if other.chunk.id == result.chunk.id]
            assert result.score == pytest.approx(same.score, abs=1e-6)
            assert result.explain is not None
            assert same.explain is not None
            assert result.explain.bm25 == pytest.approx(same.explain.bm25)
            assert result.explain.cosine == pytest.approx(same.explain.cosine)


async def test_a_phrase_is_found_under_filters(deep: Base) -> None:
    await deep.note("the connection reset", title="tagged", tags=["a"])
    wording = Wording(["connection reset"])
    assert await deep.titles("connection reset", tags=["a"], wording=wording) == ["tagged"]


async def test_words_are_required_in_the_form_that_they_have_in_their_language(base: Base) -> None:
    """German stems, pairs of Chinese characters, and an identifier with another separator.

    There are enough other chunks that the index has to narrow the search.
    """
    texts = [f"Häuser und Gärten {number} 学习机器 chars max" for number in range(FIRST + 50)]
    await german(base, *texts, title="preferred", vectors=near(len(texts)))
    await german(base, f"Gärten und Häuser {'im Norden ' * 200}", title="de", vectors=[axis(1)])
    await base.note(f"机器学习 {'in the north ' * 200}", title="zh", vectors=[axis(1)])
    await base.note(f"max-chars {'in the north ' * 200}", title="id", vectors=[axis(1)])
    for query, title in (("Gärten und Häuser", "de"), ("机器学习", "zh"), ("max_chars", "id")):
        wording = Wording([query])
        found = await base.find(**ranked(query, "hybrid", wording=wording, top=1))
        assert [result.document.title for result in found.results] == [title]
