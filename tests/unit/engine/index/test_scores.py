"""Scores: their parts, their order, and the explanation by a search."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from kb_contracts.api import models as m
from kb_engine.index.port import Scoring
from kb_verify.scores import explained
from tests.support.stores import SCORING, Base, axis, between, new_file, prepared

APPLE_OF_TWO = math.log(103 / 1.5)
"""Weight of a word that one of two chunks has."""


def explanation(result: m.SearchResult) -> m.Explanation:
    assert result.explain is not None
    return result.explain


async def test_a_hybrid_score_is_the_sum_that_it_explains(base: Base) -> None:
    await base.note("apple tree", vectors=[between(0, 1, 0.8)])
    await base.note("pear tree", vectors=[between(0, 1, 0.4)])
    scoring = Scoring(weight=0.7, saturation=3.0, floor=0.1, cosine_floor=0.1)
    found = await base.find("apple", "hybrid", vector=axis(0), scoring=scoring, explain=True)
    first, second = found.results
    parts = explanation(first)
    assert parts.cosine == pytest.approx(0.8)
    assert parts.bm25 is not None
    assert first.score == pytest.approx(explained(parts), abs=1e-5)
    assert explanation(second).bm25 is None
    assert second.score == pytest.approx(explained(explanation(second)), abs=1e-5)
    assert (parts.weight, parts.saturation) == (0.7, pytest.approx(3.0 * APPLE_OF_TWO))


async def test_in_mode_fts_the_words_alone_count(base: Base) -> None:
    await base.note("apple tree")
    await base.note("pear tree")
    found = await base.find("apple", explain=True)
    (result,) = found.results
    parts = explanation(result)
    assert parts.cosine is None
    assert parts.bm25 is not None
    assert parts.saturation == pytest.approx(SCORING.saturation * APPLE_OF_TWO)
    assert result.score == pytest.approx(explained(parts), abs=1e-5)
    assert (found.total, parts.weight) == (1, 0.0)


async def test_in_mode_vector_the_meaning_alone_counts(base: Base) -> None:
    """The words are ignored, and a negative cosine scores 0."""
    await base.note("apple", vectors=[-axis(0)], title="away")
    await base.note("pear", vectors=[between(0, 1, 0.6)], title="near")
    found = await base.find("apple", "vector", vector=axis(0), explain=True)
    assert [(r.document.title, round(r.score, 5)) for r in found.results] == [("near", 0.6), ("away", 0.0)]
    assert [explanation(result).bm25 for result in found.results] == [None, None]
    assert explanation(found.results[1]).cosine == pytest.approx(-1.0)


async def test_a_score_does_not_depend_on_the_other_results(base: Base) -> None:
    for number in range(5):
        await base.note(f"apple {number}", tags=[f"t{number}"], vectors=[between(0, 1, number / 5)])
    everything = {
        result.chunk.id: result.score
        for result in (await base.find("apple", "hybrid", vector=axis(0))).results
    }
    for number in range(5):
        (alone,) = (await base.find("apple", "hybrid", vector=axis(0), tags=[f"t{number}"])).results
        assert everything[alone.chunk.id] == alone.score


async def test_scores_lie_between_0_and_1(base: Base) -> None:
    """Also if single precision gives a cosine above 1."""
    await base.note("apple " * 200, title="apple", vectors=[axis(0) * 1.0001])
    for mode in ("hybrid", "fts", "vector"):
        (result,) = (await base.find("apple apple", mode, vector=axis(0))).results
        assert 0 < result.score <= 1


async def test_a_word_that_is_nowhere_is_missed_in_what_is_found(base: Base) -> None:
    """It counts in the query's total weight, so that a partial match is not scored as a full one."""
    await base.note("the capital", title="-")
    (whole,) = (await base.find("capital")).results
    (part,) = (await base.find("what is the capital of Mongolia")).results
    assert part.score < 0.5 < whole.score


async def test_without_words_to_look_for_meaning_alone_counts(base: Base) -> None:
    await base.note("apple", vectors=[between(0, 1, 0.8)])
    (result,) = (await base.find("?", "hybrid", vector=axis(0), explain=True)).results
    assert result.score == pytest.approx(0.8, abs=1e-5)
    assert (explanation(result).weight, explanation(result).bm25) == (1.0, None)


async def test_a_rare_word_counts_more_than_a_frequent_one(base: Base) -> None:
    for number in range(9):
        await base.note(f"tree number {number}", title="x")
    await base.note("tree apple apple", title="two")
    await base.note("tree apple other", title="one")
    assert (await base.titles("tree apple"))[:2] == ["two", "one"]


async def test_a_word_in_the_title_counts_double(base: Base) -> None:
    await base.note("pear and more", title="apple")
    await base.note("apple and more", title="pear")
    assert await base.titles("apple") == ["apple", "pear"]


async def test_a_word_in_a_heading_is_found(base: Base) -> None:
    made = prepared("text")
    headed = replace(made.chunks[0], page=None, heading="Revaluation")
    await base.ingest(new_file("x"), replace(made, chunks=[headed]))
    assert (await base.find("revaluation")).results[0].chunk.heading == "Revaluation"


async def test_equal_scores_come_in_the_order_of_the_chunks(base: Base) -> None:
    for _ in range(3):
        await base.note("same", "same", "same", vectors=[axis(0)] * 3, dedup_scope=str(_))
    for mode in ("fts", "vector", "hybrid"):
        found = await base.find("same", mode, vector=axis(0), top=4)
        assert [result.chunk.id for result in found.results] == [1, 2, 3, 4]


async def test_the_total_counts_words_and_what_lies_above_the_floor(base: Base) -> None:
    await base.note("apple", vectors=[-axis(0)])
    await base.note("near", vectors=[between(0, 1, 0.5)])
    await base.note("far", vectors=[between(0, 1, 0.1)])
    assert (await base.find("apple", "hybrid", vector=axis(0), top=1)).total == 2
    assert (await base.find("apple", "fts", top=1)).total == 1
    assert (await base.find("apple", "vector", vector=axis(0), top=1)).total == 1


async def test_the_nearest_are_results_but_not_in_the_total(base: Base) -> None:
    for number in range(4):
        await base.note(f"n{number}", vectors=[between(0, 1, 0.05)])
    for mode in ("hybrid", "vector"):
        found = await base.find("nothing", mode, vector=axis(0), top=3)
        assert (len(found.results), found.total, found.weak) == (3, 0, True)


async def test_a_good_answer_is_not_weak(base: Base) -> None:
    """A score equal to the floor is not weak; an empty result is."""
    await base.note("n", vectors=[between(0, 1, 0.3)])
    assert not (await base.find("", "vector", vector=axis(0))).weak
    assert (await base.find("nothing")).weak


async def test_the_floor_of_a_good_answer_rises_with_the_passages_that_may_answer(base: Base) -> None:
    """Filters leave fewer chunks, of which the best is less likely to be near by chance."""
    await base.note("n", vectors=[between(0, 1, 0.25)], tags=["few"])
    for number in range(40):
        await base.note(f"far {number}", vectors=[-axis(0)])
    assert not (await base.find("", "vector", vector=axis(0), tags=["few"])).weak
    assert (await base.find("", "vector", vector=axis(0))).weak


async def test_near_the_floor_of_vectors_the_words_of_the_query_decide(base: Base) -> None:
    """They may stand in any passage that may answer, which need not be the nearest."""
    await base.note("granite harbour", vectors=[between(0, 1, 0.3)])
    for _ in range(2):
        assert not (await base.find("harbour", "vector", vector=axis(0), top=3)).weak
        assert (await base.find("copper lantern", "vector", vector=axis(0), top=3)).weak
        await base.note("zebra", vectors=[between(0, 2, 0.35)])


async def test_words_alone_have_a_floor_whatever_their_share(base: Base) -> None:
    await base.note("apple tree")
    for weight in (0.0, 0.5, 1.0):
        scoring = replace(SCORING, weight=weight)
        assert not (await base.find("apple", scoring=scoring)).weak
        assert (
            await base.find("apple granite quarry harbour ledger lantern zebra copper", scoring=scoring)
        ).weak


async def test_a_near_meaning_is_not_weak_in_a_small_base(base: Base) -> None:
    """Every BM25 score is small there, so that the score alone would mark a good result as weak."""
    await base.note("n", vectors=[between(0, 1, 0.5)])
    (result,) = (await base.find("other words", "hybrid", vector=axis(0))).results
    scoring = replace(SCORING, floor=result.score + 0.05)
    assert not (await base.find("other words", "hybrid", vector=axis(0), scoring=scoring)).weak


async def test_a_result_tells_of_its_chunk_and_its_document(base: Base) -> None:
    document = await base.file(
        "one ", "needle", title="T", tags=["b", "a"], metadata={"k": 1}, source_path="/p"
    )
    (result,) = (await base.find("needle")).results
    assert (result.chunk.index, result.chunk.page, result.chunk.start, result.chunk.end) == (1, 1, 4, 10)
    summary = result.document
    assert (summary.id, summary.uid, summary.title, summary.filename) == (
        document.id,
        document.uid,
        "T",
        "file.txt",
    )
    assert (summary.metadata, summary.source_path, summary.version) == ({"k": 1}, "/p", 1)
    assert result.tags == ["b", "a"]


async def test_an_empty_base_answers_weakly_in_every_mode(base: Base) -> None:
    for mode in ("hybrid", "fts", "vector"):
        found = await base.find("anything", mode, vector=axis(0))
        assert (found.results, found.total, found.weak) == ([], 0, True)


async def test_the_weight_of_a_word_is_as_documented(base: Base) -> None:
    """BM25 with k1 = 1.5 and b = 0.75, in a base that counts as larger by a hundred chunks."""
    for text in ("apple", "pear", "plum"):
        await base.note(text, title="-")
    (result,) = (await base.find("apple", explain=True)).results
    assert explanation(result).bm25 == pytest.approx(math.log(104 / 1.5), rel=1e-4)
