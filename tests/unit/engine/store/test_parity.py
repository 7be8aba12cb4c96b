"""The same history on both stores gives equal documents, totals and order, and nearly equal scores."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kb_contracts.api import models as m
from kb_contracts.semantics.query import Wording
from kb_engine.store.port import Found, Prepared
from kb_engine.store.postgres import transaction
from kb_engine.store.repository import documents
from tests.support.postgres import give_back, new_database
from tests.support.stores import Base, all_documents, meaning, new_file, new_note, opened, prepared

pytestmark = pytest.mark.process

MODES: Sequence[m.Mode] = ("fts", "vector", "hybrid")
WORDS = (
    "bee bees hive hives honey running runs ran runner naïve naive café cafe Ångström it's c++ e-mail "
    "中国 旅游 我今天去中国旅游了 東京タワー タワー 오늘 학교에서 мир Привет emoji🙂 🙂 x\0y \ufb01sh ①② ½ "
    "the the the the of of and a İstanbul ﾊﾝｶｸ が゛ ・中 中・国 中,国 𠀀𠀁 résumé RESUME " + "long" * 60
).split(" ")


Pair = tuple[Base, Base]


async def search(pair: Pair, text: str, mode: m.Mode, **changes: Any) -> None:
    """Search both bases, and compare the results."""
    first, second = [
        await base.find(text, mode, vector=meaning(text), explain=True, **changes) for base in pair
    ]
    assert told(first) == told(second), (text, mode, changes)
    assert scores(first) == pytest.approx(scores(second), abs=1e-4), (text, mode, changes)


def told(found: Found) -> tuple[object, ...]:
    """Return the results without the numbers that may differ in their last digits."""
    ids = [(result.chunk.id, result.document.id, result.chunk.text, result.tags) for result in found.results]
    return found.total, found.weak, ids


def scores(found: Found) -> list[float]:
    parts = [(result.score, result.explain) for result in found.results]
    return [number for score, x in parts if x for number in (score, x.cosine or 0.0, x.bm25 or 0.0)]


@pytest.fixture
async def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    for bound in ("SLICE", "_COPIED"):
        monkeypatch.setattr(transaction, bound, 3)  # less than some documents have
    database = await new_database()
    async with opened(tmp_path / "kb.db") as one, opened(database) as other:
        yield one, other
    give_back(database)


async def fill(pair: Pair, chance: random.Random, count: int) -> None:
    """Add notes and files with headings and tags; change some, remove some."""
    for number in range(count):
        made = document(chance, f"title {chance.choice(WORDS)}")
        job = (new_note if number % 2 else new_file)(
            f"{number}", title=made.title, tags=chance.sample(["a", "b", "c"], chance.randint(0, 2))
        )
        change, key = chance.random(), chance.randint(1, count)
        for base in pair:
            await base.ingest(job, made)
        if change < 0.1 and number > 2:
            for base in pair:
                if any(one.id == key for one in (await all_documents(base)).documents):
                    await base.store.once(None, documents.delete, key)


def document(chance: random.Random, title: str) -> Prepared:
    texts = [" ".join(chance.choices(WORDS, k=chance.randint(1, 30))) for _ in range(chance.randint(1, 4))]
    plain = prepared(*texts, title=title)
    headed = [replace(c, heading=chance.choice([None, *WORDS])) for c in plain.chunks]
    return replace(plain, chunks=headed)


@pytest.mark.parametrize("seed", [1, 2])
async def test_the_same_history_gives_the_same_answers(pair: Pair, seed: int) -> None:
    chance = random.Random(seed)
    await fill(pair, chance, 30)
    for word in dict.fromkeys(WORDS):
        await search(pair, word, "fts", top=100)
    for _ in range(80):
        text = " ".join(chance.choices(WORDS, k=chance.randint(1, 5)))
        filters: dict[str, Any] = chance.choice(
            [{}, {"tags": ["a"]}, {"tags_any": ["a", "b"]}, {"doc_type": "note"}]
        )
        held, excluded = chance.choice([[], [text], [chance.choice(WORDS)]]), [chance.choice(WORDS)]
        wording = chance.choice([None, Wording(held, excluded)])
        least = chance.choice([0.0, 0.2])
        await search(
            pair,
            text,
            chance.choice(MODES),
            top=chance.choice([3, 100]),
            min_score=least,
            wording=wording,
            **filters,
        )


async def test_a_word_of_thirty_thousand_letters_is_found(pair: Pair) -> None:
    """It is longer than an index row may be."""
    word = "q" * 30_000
    for base in pair:
        await base.ingest(new_note("x"), prepared(f"{word} and more"))
    await search(pair, word, "fts")
