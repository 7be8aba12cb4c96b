"""Chunks that have lost their vectors: searches use the other chunks, and report it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kb_contracts.access.reach import REACH, Reach
from kb_engine.store.postgres.search import hybrid as postgres_search
from kb_engine.store.repository import documents
from tests.support.stores import Base, Place, direct, meaning, opened

TEXTS = ("granite quarry", "granite columns", "granite roofs")


async def execute(place: Place, sql: str) -> None:
    if isinstance(place, Path):
        with direct(place) as db:
            db.execute(sql)
    else:
        await place.execute(sql)


async def filled(base: Base) -> None:
    for text in TEXTS:
        await base.note(text, title=text, tags=[text.split()[1]])
    await execute(base.place, "DELETE FROM vectors WHERE chunk_id = 2")


@pytest.mark.parametrize("few", [0, postgres_search.FEW_CHUNKS])
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_search_without_lost_vectors_is_marked_incomplete(
    place: Place, monkeypatch: pytest.MonkeyPatch, restarted: bool, few: int
) -> None:
    """Only if a damaged chunk passes the filters, and as long as it exists."""
    monkeypatch.setattr(postgres_search, "FEW_CHUNKS", few)
    async with opened(place) as base:
        await filled(base)
        if not restarted:
            await expect_the_rest(base)
    if restarted:
        async with opened(place) as base:
            await expect_the_rest(base)


async def expect_the_rest(base: Base) -> None:
    rest, lost = {TEXTS[0], TEXTS[2]}, meaning(TEXTS[1])
    for text, mode in (("granite", "hybrid"), ("granite", "vector"), ("columns", "hybrid")):
        found = await base.find(text, mode, vector=lost)  # type: ignore[arg-type]
        assert ({each.document.title for each in found.results}, found.lost) == (rest, 1)
    assert (await base.find("granite", "vector", vector=lost, tags=["quarry"])).lost == 0
    before = REACH.set(Reach(frozenset(["roofs"])))
    try:
        assert (await base.find("granite", "vector", vector=lost)).lost == 0
    finally:
        REACH.reset(before)
    assert await base.store.lost_vectors() == 1
    await base.store.write(documents.delete, 2)
    assert (await base.find("granite", "vector", vector=lost)).lost == 0
    assert await base.store.lost_vectors() == 0


async def test_with_all_vectors_lost_a_hybrid_search_is_empty_and_counts_them(base: Base) -> None:
    await filled(base)
    await execute(base.place, "DELETE FROM vectors")
    found = await base.find("granite", "hybrid", vector=meaning(TEXTS[0]))
    assert (found.results, found.lost) == ([], len(TEXTS))
