"""Qdrant's core in process: HNSW, words as sparse vectors with its IDF, fused by its own reciprocal ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import qdrant_edge as q
from numpy.typing import NDArray

from bench.corpus import DIMENSIONS, TAG, TOP, Document
from bench.peers import CANDIDATES, Peer

_AVERAGE_LENGTH = 70.0


class Qdrant(Peer):
    efforts = (64, 128, 256, 512, 1024)
    effort = efforts[0]

    def __init__(self, folder: Path) -> None:
        shard = folder / "shard"
        self._words = q.Bm25(q.Bm25Config(avg_len=_AVERAGE_LENGTH))
        config = q.EdgeConfig(
            vectors={"meaning": q.EdgeVectorParams(DIMENSIONS, q.Distance.Cosine)},
            sparse_vectors={"words": q.EdgeSparseVectorParams(modifier=q.Modifier.Idf)},
            hnsw_config=q.HnswIndexConfig(m=16, ef_construct=100, full_scan_threshold=10_000),
        )
        if shard.exists():
            self._shard = q.EdgeShard.load(str(shard))
            return
        shard.mkdir()
        self._shard = q.EdgeShard.create(str(shard), config)
        self._shard.update(q.UpdateOperation.create_field_index("tag", q.PayloadSchemaType.Keyword))

    def insert(self, documents: Sequence[Document]) -> None:
        points = [
            q.Point(
                each.first + offset,
                {"meaning": vector.tolist(), "words": self._words.embed_document(text)},
                {"text": text, **({"tag": TAG} if each.tagged else {})},
            )
            for each in documents
            for offset, (text, vector) in enumerate(zip(each.full_texts, each.vectors, strict=True))
        ]
        self._shard.update(q.UpdateOperation.upsert_points(points))

    def finish(self) -> None:
        self._shard.flush()
        self._shard.optimize()

    def search(self, text: str | None, vector: NDArray[np.float32] | None, tag: str | None) -> Sequence[int]:
        kept = None
        if tag is not None:
            kept = q.Filter(must=[q.FieldCondition("tag", match=q.MatchValue(tag))])
        parts = []
        if vector is not None:
            near = q.Query.Nearest(vector.tolist(), using="meaning")
            parts.append((near, q.SearchParams(hnsw_ef=self.effort)))
        if text is not None:
            parts.append((q.Query.Nearest(self._words.embed_query(text), using="words"), None))
        if len(parts) == 1:
            query, params = parts[0]
            request = q.QueryRequest(TOP, query=query, filter=kept, params=params, with_payload=False)
        else:
            prefetches = [
                q.Prefetch(CANDIDATES, query=query, params=params, filter=kept) for query, params in parts
            ]
            request = q.QueryRequest(TOP, query=q.Fusion.Rrf(60), prefetches=prefetches, with_payload=False)
        return [point.id for point in self._shard.query(request)]

    def close(self) -> None:
        self._shard.close()
