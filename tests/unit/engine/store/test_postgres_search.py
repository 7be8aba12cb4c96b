"""Searches by the HNSW index find nearly all exact results, and filters keep all matches."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from itertools import pairwise, product

import numpy as np
import pytest

from kb_contracts.access.reach import Reach
from kb_contracts.api import models as m
from kb_contracts.semantics.query import Wording
from kb_engine.index.port import Vectors
from kb_engine.store.port import Found
from kb_engine.store.postgres import word_order
from kb_engine.store.postgres.search import hybrid, words
from kb_engine.store.postgres.word_order import MOST_IDS
from kb_engine.store.repository import documents
from tests.support.postgres import give_back, new_database
from tests.support.stores import DIMENSIONS, Base, axis, build_vector_index, opened

pytestmark = pytest.mark.process

EACH, CENTRES = 50, 12
LONG = "x" * 3_000
"""A word that no index of PostgreSQL takes as it is."""
WORDS = [f"w{number}" for number in range(40)]


def clustered(seed: int, count: int) -> Vectors:
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(CENTRES, DIMENSIONS))
    vectors = centres[rng.integers(0, CENTRES, count)] + 0.4 * rng.normal(size=(count, DIMENSIONS))
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


@pytest.fixture
async def base(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Base]:
    """1,000 chunks in clusters, half of them `even`; each part finds at most a fifth."""
    monkeypatch.setattr(hybrid, "FEW_CHUNKS", 0)
    monkeypatch.setattr(hybrid, "POOLS", (100, 200))
    place = await new_database()
    async with opened(place, exact_below=1_000) as base:
        await build_vector_index(base)
        rng = np.random.default_rng(1)
        for number in range(1_000 // EACH):
            texts = [" ".join(rng.choice(WORDS, 5)) for _ in range(EACH)]
            tags = ["even" if number % 2 == 0 else "odd", *(["one"] if number == 7 else [])]
            vectors = list(clustered(number, EACH))
            await base.note(*texts, tags=tags, vectors=vectors, dedup_scope=str(number))
        yield base
    give_back(place)


async def both_ways(base: Base, mode: m.Mode, number: int, **selection: list[str]) -> tuple[Found, Found]:
    """Search by the index, and exactly."""
    question = " ".join(np.random.default_rng(number).choice(WORDS, 3))
    vector = clustered(1_000 + number, 1)[0]
    answers = []
    for exact_below in (0, 10**9):
        base.store._exact_below = exact_below
        answers.append(await base.find(question, mode, vector=vector, **selection))
    return answers[0], answers[1]


@pytest.mark.parametrize("mode", ["vector", "hybrid"])
@pytest.mark.parametrize("selection", [{}, {"tags": ["even"]}])
async def test_the_index_finds_nearly_all_of_the_best(
    base: Base, mode: m.Mode, selection: dict[str, list[str]]
) -> None:
    shared = 0
    for number in range(20):
        found, due = await both_ways(base, mode, number, **selection)
        assert due.exact
        assert not found.exact
        assert not found.total_exact
        assert len(found.results) <= found.total <= due.total
        scores = {result.chunk.id: result.score for result in due.results}
        for result in found.results:
            assert scores.get(result.chunk.id, result.score) == pytest.approx(result.score, abs=2e-6)
            assert {*selection.get("tags", ())} <= {*result.tags}
        shared += len(scores.keys() & {result.chunk.id for result in found.results})
    assert shared >= 0.95 * 200


async def test_where_filters_leave_little_the_answer_is_exact(base: Base) -> None:
    base.store._exact_below = 1_000
    found = await base.find("w1", "hybrid", vector=axis(0), tags=["one"])
    assert (found.exact, found.total_exact) == (True, True)
    assert not (await base.find("w1", "hybrid", vector=axis(0))).exact


async def test_an_access_scope_is_kept_once_for_all_counts_of_words(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request has its own copy, which may be long."""
    monkeypatch.setattr(words, "CACHED_FROM", 1)
    scopes = [each for each in gc.get_objects() if isinstance(each, Reach)]  # those of other tests
    others = set(map(id, scopes))
    for word in WORDS[:10]:
        assert (await base.find(word, reach=Reach(frozenset(["even"])))).results
    gc.collect()
    kept = [each for each in gc.get_objects() if isinstance(each, Reach) and id(each) not in others]
    assert 0 < len(kept) <= 2  # for the size of the scope, and for the counts in it


async def test_vector_search_follows_deletions_and_additions(base: Base) -> None:
    vector = clustered(0, 1)[0]
    (nearest, *_) = (await base.find("", "vector", vector=vector)).results
    await base.store.once(None, documents.delete, nearest.document.id)
    after = await base.find("", "vector", vector=vector)
    assert nearest.document.id not in {result.document.id for result in after.results}
    added = await base.note("new", vectors=[vector])
    (best, *_) = (await base.find("", "vector", vector=vector)).results
    assert (best.document.id, best.score) == (added.id, 1.0)


async def test_the_chunks_that_pass_a_wording_are_those_whose_texts_pass(
    monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """Listed as those that pass or as the others, or left to the texts if both are too many."""
    rng = np.random.default_rng(2)
    pieces = ["a", "B", "c", "é", "Straße", "机器", LONG, "_", "-", "."]
    texts = [" ".join(rng.choice(pieces, 6)) for _ in range(30)]
    phrases = ["", "a", "a b", "STRASSE a", "器", LONG, f"c {LONG}", "title", "title a"]
    wordings = [Wording([one], [other]) for one, other in pairwise(phrases)]
    wordings += [Wording([""]), *(Wording(excluded=[one, "e"]) for one in phrases)]
    place = await new_database()
    async with opened(place) as base:
        await base.note(*texts, title="title", vectors=list(clustered(1, len(texts))))
        for wording, most in product(wordings, (MOST_IDS, 10, 0)):
            monkeypatch.setattr(word_order, "MOST_IDS", most)
            with subtests.test(held=wording.phrases, barred=wording.excluded, most=most):
                found = await base.find("a", "vector", wording=wording, top=len(texts), vector=axis(0))
                due = sorted(text for text in texts if wording.passes("title", None, text))
                assert sorted(result.chunk.text for result in found.results) == due
        monkeypatch.setattr(word_order, "MOST_IDS", MOST_IDS)
        told = word_order.passing
        for most, is_told in ((2 * len(texts), True), (2 * len(texts) - 1, False)):
            monkeypatch.setattr(word_order, "MOST_COMPARED", most)
            found = await base.store.read(lambda read: told(read.db, Wording(["a"], ["b"])))
            assert (found is not None) == is_told
    give_back(place)
