"""The embedding endpoint of the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.embedding_endpoint import EmbeddingEndpoint, endpoint


@pytest.fixture
def served() -> Iterator[EmbeddingEndpoint]:
    with endpoint() as serving:
        yield serving
