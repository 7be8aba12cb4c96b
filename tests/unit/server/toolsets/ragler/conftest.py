"""The tools of `ragler` with a backend that is not kb's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.ragler import Backend, RaglerTools, backend_running, tools_before


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    async with backend_running() as running:
        yield running


@pytest.fixture
async def tools(backend: Backend, tmp_path: Path) -> AsyncIterator[RaglerTools]:
    async with tools_before(backend.url, tmp_path) as made:
        yield made
