"""An empty base in either store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.stores import Base, Place, opened


@pytest.fixture
async def base(place: Place) -> AsyncIterator[Base]:
    async with opened(place) as base:
        yield base
