"""Search by meaning: an index of chunk vectors, kept in step with the store's transactions."""

from kb_engine.vectors.exact import ExactIndex, Snapshot
from kb_engine.vectors.port import Batch, Changes, VectorIndex, Vectors, VectorSnapshot

__all__ = ["Batch", "Changes", "ExactIndex", "Snapshot", "VectorIndex", "VectorSnapshot", "Vectors"]
