"""An index in Qdrant, one server or a cluster: shards hold chunks, and replicas hold shards.

Each chunk is a point, whose id is the chunk's: its vector, its words as a sparse vector, and as payload what
filters ask about. `points.py` says what is in a point, `mark.py` how the generation is remembered and who may
write, `search.py` how the best are found and proven.

This package needs the extra `qdrant`; its settings do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kb_engine.index.port import Index

if TYPE_CHECKING:
    from kb_engine.settings import EngineSettings


def index_from(settings: EngineSettings) -> Index:
    """The index of `settings.qdrant`. Nothing is called yet.

    Raises:
        ModuleNotFoundError: the client is not installed.
    """
    from kb_engine.index.qdrant.index import QdrantIndex

    return QdrantIndex(settings.qdrant)
