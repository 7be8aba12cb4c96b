"""Search agrees with a second implementation of the formula, for any documents, query and filter."""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kb_contracts.api import models as m
from kb_engine.store.port import Found
from kb_verify.scores import explained
from tests.support.stores import SCORING, meaning, opened

WORDS = ["apple", "pear", "plum", "fig", "kiwi"]
TEXT = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)
DOCUMENTS = st.lists(
    st.tuples(st.lists(TEXT, min_size=1, max_size=3), st.sets(st.sampled_from("ab"))), min_size=1, max_size=8
)
K1, B, K3 = 1.5, 0.75, 8


class Model:
    """All chunks with their words, scored with textbook BM25."""

    def __init__(self, documents: list[tuple[list[str], set[str]]]) -> None:
        self.chunks = [(text.split(), tags, meaning(text)) for texts, tags in documents for text in texts]
        self.average = sum(len(words) + 1 for words, _, _ in self.chunks) / len(self.chunks)

    def bm25(self, words: list[str], query: str) -> float:
        """The length includes the title's one word, which no query has."""
        total = 0.0
        for word, count in Counter(words).items():
            if word in query.split():
                length = 1 - B + B * (len(words) + 1) / self.average
                total += self.weight(word, query) * count * (K1 + 1) / (count + K1 * length)
        return total

    def weight(self, word: str, query: str) -> float:
        """The weight of a word of the query; repetitions count with saturation."""
        holding = sum(word in other for other, _, _ in self.chunks)
        repeated = query.split().count(word)
        idf = (1 if holding else 2) * math.log((len(self.chunks) + 101) / (holding + 0.5))
        return idf * (K3 + 1) * repeated / (K3 + repeated)

    def scores(self, query: str, mode: m.Mode, tag: str | None) -> dict[int, float]:
        found = {}
        saturation = SCORING.saturation * sum(self.weight(word, query) for word in set(query.split()))
        for number, (words, tags, vector) in enumerate(self.chunks, 1):
            if tag is not None and tag not in tags:
                continue
            cosine = float(np.vecdot(vector, meaning(query)))
            bm25 = self.bm25(words, query)
            if mode == "fts" and not bm25:
                continue
            weight = {"fts": 0.0, "vector": 1.0, "hybrid": SCORING.weight}[mode]
            parts = m.Explanation(cosine=cosine, bm25=bm25, weight=weight, saturation=saturation)
            found[number] = explained(parts)
        return found


@pytest.mark.process
@settings(max_examples=25)
@given(DOCUMENTS, TEXT, st.sampled_from(["fts", "vector", "hybrid"]), st.sampled_from([None, "a"]))
def test_search_gives_the_scores_of_the_formula(
    documents: list[tuple[list[str], set[str]]], query: str, mode: m.Mode, tag: str | None
) -> None:
    found = asyncio.run(searched(documents, query, mode, tag))
    expected = Model(documents).scores(query, mode, tag)
    assert {r.chunk.id: r.score for r in found.results} == pytest.approx(expected, abs=2e-5)
    order = [(-result.score, result.chunk.id) for result in found.results]
    assert order == sorted(order)
    assert len(found.results) == found.total or mode != "fts"


async def searched(
    documents: list[tuple[list[str], set[str]]], query: str, mode: m.Mode, tag: str | None
) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        async with opened(Path(folder) / "kb.db") as base:
            for number, (texts, tags) in enumerate(documents):
                await base.note(*texts, tags=sorted(tags), title="untitled", dedup_scope=str(number))
            chosen = [tag] if tag else []
            return await base.find(query, mode, vector=meaning(query), top=100, tags=chosen)
