"""Tests of the index contract, run on the embedded index, PostgreSQL's and remote ones.

PostgreSQL's runs in each of its ways to find chunks. Rows that only search share a base: they are subtests of
one test. Rows of the analyser and of the query parser, which all indexes share, run on the embedded index.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from kb_engine.store.postgres.search import hybrid
from tests.support.far_indexes import FAR, far_away
from tests.support.new_base import put_base
from tests.support.postgres import Database, give_back
from tests.support.stores import Base, build_vector_index, new_place, opened

KINDS = (
    "embedded",
    *(
        pytest.param(kind, marks=pytest.mark.process)
        for kind in ("postgres", "postgres scoring all", "postgres by HNSW")
    ),
)


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[Base]:
    async with opened(put_base(tmp_path / "kb.db")) as base:
        yield base


@pytest.fixture(params=(*KINDS, *FAR))
async def base(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Base]:
    """An empty base with one of the indexes."""
    store, _, way = request.param.partition(" ")
    place = await new_place("postgres" if store == "postgres" else "sqlite", tmp_path)
    if way:
        monkeypatch.setattr(hybrid, "FEW_CHUNKS", 0)
    more: dict[str, Any] = {"exact_below": 0} if way == "by HNSW" else {}
    async with AsyncExitStack() as stack:
        index = None
        if store not in {"embedded", "postgres"}:
            index = (await stack.enter_async_context(far_away(store))).index()
        base = await stack.enter_async_context(opened(place, index=index, **more))
        if way == "by HNSW":
            await build_vector_index(base)
        yield base
    if isinstance(place, Database):
        give_back(place)
