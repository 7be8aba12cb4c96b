"""Both stores for whoever asks for a place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.engine.store_parts import Place, new_place

STORES = ("sqlite", "postgres")


@pytest.fixture(params=STORES)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where a base may lie: a file, or a database."""
    return await new_place(request.param, tmp_path)
