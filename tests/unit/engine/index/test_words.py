"""Keyword search: any language, any input, and a limit of the work for frequent words."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kb_engine.store.postgres.search import hybrid, words
from kb_engine.store.repository import documents
from tests.support.postgres import give_back, new_database
from tests.support.stores import Base, axis, new_file, opened, prepared

FOUND = [
    ("He was running late", "run"),
    ("Café au lait", "cafe"),
    ("naive methods", "naïve"),
    ("我今天去中国旅游了", "中国"),
    ("我今天去中国旅游了", "旅游"),
    ("東京タワーへ行きました", "タワー"),
    ("오늘 학교에서 공부했다", "학교"),
    ("Привет, мир", "мир"),
    ("emoji 🙂 here", "🙂"),
    ("zero\0byte", "byte"),
    ("C++ and #hashtags", "c++"),
    ("it's", "it's"),
    ("e-mail: a@b.example", "a@b.example"),
]


async def test_a_word_of_a_text_is_found(base: Base, subtests: pytest.Subtests) -> None:
    for text in dict(FOUND):
        await base.note(text, title="-")
    for text, query in FOUND:
        with subtests.test(query=query):
            assert [result.chunk.text for result in (await base.find(query)).results] == [text]


async def test_no_query_is_an_error(base: Base, subtests: pytest.Subtests) -> None:
    await base.note("plain words")
    signs = ['"', "-", "*", "\0", "\ud800", "🙂🙂"]
    syntax = ['"unbalanced', "NEAR(a b)", "a* OR", "title:x", "{a}", "^a", "(" * 4_000]
    for query in (*signs, *syntax):
        for mode in ("fts", "hybrid"):
            with subtests.test(query=query[:10], mode=mode):
                assert (await base.find(query, mode, vector=axis(0))).total >= 0


async def test_four_thousand_characters_are_searched(base: Base) -> None:
    await base.note("needle in a haystack")
    query = ("needle " + " ".join(f"w{number}" for number in range(1_000)))[:4_000]
    assert (await base.find(query)).total == 1


async def test_cjk_characters_apart_are_no_word(embedded: Base) -> None:
    await embedded.note("中文和国家")
    assert (await embedded.find("中国")).total == 0


async def test_every_word_counts_however_frequent(tmp_path: Path) -> None:
    async with opened(tmp_path / "kb.db") as base:
        for number in range(40):
            await base.note("old tree" if number < 30 else "old lake", dedup_scope=str(number))
        found = await base.find("old lake", top=100, explain=True)
        assert found.total == 40
        weights = [math.log(141 / (count + 0.5)) for count in (40, 10)]
        best = found.results[0].explain
        assert best is not None
        assert best.bm25 == pytest.approx(sum(weights), rel=1e-4)


# --- frequent words, only some of which a search on PostgreSQL looks up


@pytest.fixture
async def store() -> AsyncIterator[Base]:
    """An empty base on PostgreSQL."""
    place = await new_database()
    async with opened(place) as base:
        yield base
    give_back(place)


@pytest.fixture
async def frequent(store: Base, monkeypatch: pytest.MonkeyPatch) -> Base:
    """Forty chunks have `the`, thirty `tree`, one `apple`; the budget is ten chunks."""
    for number in range(40):
        text = "the tree" if number < 30 else "the lake"
        text += " apple apple" if number == 3 else ""
        await store.note(text, dedup_scope=str(number), tags=["few"] if number in {5, 35} else ["many"])
    monkeypatch.setattr(words, "BUDGET_CHUNKS", 10)
    monkeypatch.setattr(words, "BUDGET_SHARE", 0)
    monkeypatch.setattr(hybrid, "FEW_CHUNKS", 2)
    return store


@pytest.mark.process
async def test_beside_a_rare_word_frequent_ones_bring_no_chunks_and_count(frequent: Base) -> None:
    found = await frequent.find("the apple tree", explain=True)
    assert ([result.document.id for result in found.results], found.total) == ([4], 1)
    assert (found.exact, found.total_exact) == (False, False)
    alone = [await frequent.find(word, tags=["many"], top=100, explain=True) for word in ("apple", "tree")]
    parts = [result.explain for each in alone for result in each.results if result.document.id == 4]
    whole = found.results[0].explain
    assert whole is not None
    assert whole.bm25 == pytest.approx(sum(part.bm25 or 0 for part in parts if part is not None))


@pytest.mark.process
async def test_the_rarest_of_frequent_words_is_asked_for(frequent: Base) -> None:
    assert (await frequent.find("the tree", top=100)).total == 30


@pytest.mark.process
async def test_a_query_of_one_stop_word_finds_documents_with_it(frequent: Base) -> None:
    found = await frequent.find("the", top=100)
    assert (found.total, found.total_exact, len(found.results)) == (40, True, 40)


@pytest.mark.process
async def test_a_frequent_word_counts_where_the_filters_leave_few(frequent: Base) -> None:
    """A few chunks are scored by every word in them."""
    assert [result.document.id for result in (await frequent.find("tree", tags=["few"])).results] == [6]
    found = await frequent.find("apple tree lake", tags=["few"])
    assert {result.document.id for result in found.results} == {6, 36}


@pytest.mark.process
async def test_a_frequent_word_counts_where_the_filters_shut_out_the_rare_ones(frequent: Base) -> None:
    await frequent.store.once(None, documents.remove_tag, 4, "many", None)
    assert (await frequent.find("apple tree", tags=["many"], top=100)).total == 28


@pytest.mark.process
async def test_a_word_that_nothing_holds_does_not_hide_a_frequent_one(frequent: Base) -> None:
    assert (await frequent.find("tree unheard", top=100)).total == 30


@pytest.mark.process
async def test_scores_with_few_left_are_those_of_all(frequent: Base) -> None:
    everything = await frequent.find("apple", explain=True)
    await frequent.store.once(None, documents.add_tags, 4, ["apple only"], None)
    alone = await frequent.find("apple", tags=["apple only"], explain=True)
    assert [r.score for r in alone.results] == [r.score for r in everything.results]


@pytest.mark.process
async def test_cached_word_counts_are_refreshed_after_changes_and_bounded(
    store: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A count is refreshed when the base has changed, and dropped before the cache grows too large."""
    monkeypatch.setattr(words, "CACHED_FROM", 1)
    monkeypatch.setattr(words, "CACHE_SIZE", 3)
    remembering = store.store._words
    for number in range(6):
        await store.note(f"apple {number}", dedup_scope=str(number))
        scores = []
        for chosen in (remembering, type(remembering)()):
            store.store._words = chosen
            found = await store.find("apple pear plum", explain=True)
            assert found.results[0].explain is not None
            scores.append(found.results[0].explain.bm25)
        assert scores[0] == pytest.approx(scores[1], rel=1e-9)
        store.store._words = remembering
        await store.find(f"{number} apple")
        assert len(remembering._counts) <= 3


async def test_deleted_chunks_do_not_weigh_on_the_words_of_others(base: Base) -> None:
    for number in range(5):
        await base.note(f"apple {number}", dedup_scope=str(number))
    before = (await base.find("apple")).results[0].score
    await base.ingest(new_file("gone"), prepared(*["apple"] * 50))
    await base.store.once(None, documents.delete, 6)
    assert (await base.find("apple")).results[0].score == pytest.approx(before, abs=1e-6)
