"""The contract of an index: its tests run on those in a base, SQLite's and PostgreSQL's, and far away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.far_indexes import FAR, far_away
from tests.support.postgres import Database, give_back
from tests.support.stores import Base, new_place, opened


@pytest.fixture(params=("embedded", pytest.param("postgres", marks=pytest.mark.process), *FAR))
async def base(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Base]:
    """An empty base whose searches one of the indexes answers."""
    if request.param in {"embedded", "postgres"}:
        place = await new_place("sqlite" if request.param == "embedded" else "postgres", tmp_path)
        async with opened(place) as base:
            yield base
        if isinstance(place, Database):
            give_back(place)
        return
    async with (
        far_away(request.param) as server,
        opened(await new_place("sqlite", tmp_path), index=server.index()) as base,
    ):
        yield base
