"""What a base on SQLite and one on PostgreSQL have in common when all their chunks are embedded again."""

from __future__ import annotations

from collections.abc import Callable

from kb_engine.index.port import Vectors
from kb_engine.store.port import EmbedderIdentity

BATCH = 32

Progress = Callable[[int, int], None]
"""Called with how many chunks of how many are done."""


def check_shape(vectors: Vectors, count: int, embedder: EmbedderIdentity) -> None:
    """Raises ValueError: these are not `count` vectors of the dimensions that the embedder says."""
    if vectors.shape != (count, embedder.dimensions):
        raise ValueError(
            f"{count} chunks of {embedder.dimensions} dimensions, but vectors of shape {vectors.shape}"
        )
