"""The tools of `kb` and `kb-extra` with a simulated engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.server_fixtures import ToolCaller, calling
from tests.support.simulated_engine import SimulatedEngine
from tests.support.simulated_engine import engine as engine


@pytest.fixture
async def tools(engine: SimulatedEngine, tmp_path: Path) -> AsyncIterator[ToolCaller]:
    async with calling(engine, tmp_path, http_base="https://kb.example") as tools:
        yield tools
