"""Both stores, for tests that use a place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.postgres import Database, give_back, new_database
from tests.support.stores import Place, new_place


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.process)])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """A place for a base: a file, or a database."""
    place = await new_place(request.param, tmp_path)
    yield place
    if isinstance(place, Database):
        give_back(place)


@pytest.fixture
async def database() -> AsyncIterator[Database]:
    database = await new_database()
    yield database
    give_back(database)
