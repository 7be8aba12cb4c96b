"""A following index in Qdrant, on one server or a cluster: shards hold chunks, and replicas hold shards.

Each chunk is a point with the chunk's id: its vector, its words as a sparse vector, and the fields for
filters as payload. `points.py` defines the points, `mark.py` stores the generation and controls write access,
`querying.py` finds the best chunks and proves them.

This package needs the extra `qdrant`.
"""

from __future__ import annotations

from kb_engine.index.qdrant.qdrant_settings import QdrantSettings
from kb_engine.parts import Part

PART = Part("qdrant", QdrantSettings, index="kb_engine.index.qdrant.index:index_from")
