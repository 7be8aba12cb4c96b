"""Workers over a real store and spool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.ingesting import Parts, parts_in
from tests.support.patience import ANSWER_SECONDS


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    async with asyncio.timeout(ANSWER_SECONDS), parts_in(tmp_path) as parts:
        yield parts
