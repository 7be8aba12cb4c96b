"""A following index in Qdrant, on one server or a cluster: shards hold chunks, and replicas hold shards.

Each chunk is a point with the chunk's id: its vector, its words as a sparse vector, and the fields for
filters as payload. `points.py` defines the points, `mark.py` stores the generation and controls write access,
`querying.py` finds the best chunks and proves them.

This package needs the extra `qdrant`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kb_engine.index.port import Index

if TYPE_CHECKING:
    from kb_engine.settings import EngineSettings


def index_from(settings: EngineSettings) -> Index:
    """Return the index of `settings.qdrant`. Makes no request yet.

    Raises:
        ModuleNotFoundError: the client is not installed.
    """
    from kb_engine.index.qdrant.index import QdrantIndex

    return QdrantIndex(settings.qdrant)
