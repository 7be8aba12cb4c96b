"""A reranking endpoint, and rerankers that use it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.rerank_endpoint import RerankEndpoint, rerank_endpoint


@pytest.fixture
async def served() -> AsyncIterator[RerankEndpoint]:
    async with rerank_endpoint() as endpoint:
        yield endpoint
