"""The contract of an index: its tests run on that of a SQLite base, on PostgreSQL's, and on one far away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.postgres import Database, give_back
from tests.support.remote_index import RemoteIndex, Server
from tests.support.stores import Base, new_place, opened


@pytest.fixture(params=("embedded", pytest.param("postgres", marks=pytest.mark.process), "remote"))
async def base(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Base]:
    """An empty base whose searches one of the indexes answers."""
    place = await new_place("postgres" if request.param == "postgres" else "sqlite", tmp_path)
    async with opened(place, index=RemoteIndex(Server()) if request.param == "remote" else None) as base:
        yield base
    if isinstance(place, Database):
        give_back(place)
