"""LanceDB: its inverted index, IVF with 8 bits and rescoring, its own fusion by reciprocal ranks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
from lancedb.index import FTS, Bitmap, HnswSq
from lancedb.rerankers import RRFReranker
from numpy.typing import NDArray

from bench.corpus import DIMENSIONS, TAG, TOP, Document
from bench.peers import Peer

_SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("text", pa.string()),
        ("tag", pa.string()),
        ("vector", pa.list_(pa.float32(), DIMENSIONS)),
    ]
)
_ROWS_AT_ONCE = 20_000
_FEW = 1_000


class Lance(Peer):
    efforts = (64, 128, 256, 512, 1024)
    effort = efforts[0]

    def __init__(self, folder: Path) -> None:
        base = lancedb.connect(str(folder))
        self._table = base.create_table("passages", schema=_SCHEMA, exist_ok=True)
        self._waiting: list[Document] = []
        self._reranker = RRFReranker()

    def insert(self, documents: Sequence[Document]) -> None:
        self._waiting += documents
        if sum(len(each.texts) for each in self._waiting) >= _ROWS_AT_ONCE:
            self._write()

    def _write(self) -> None:
        rows = [(each, offset) for each in self._waiting for offset in range(len(each.texts))]
        vectors = np.concatenate([each.vectors for each in self._waiting])
        columns: list[Any] = [
            pa.array([each.first + offset for each, offset in rows]),
            pa.array([text for each in self._waiting for text in each.full_texts]),
            pa.array([TAG if each.tagged else "" for each, _ in rows]),
            pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIMENSIONS),
        ]
        self._table.add(pa.Table.from_arrays(columns, schema=_SCHEMA))
        self._waiting = []

    def finish(self) -> None:
        if self._waiting:
            self._write()
        self._table.create_index("text", config=FTS(with_position=False))
        self._table.create_index("tag", config=Bitmap())
        if self._table.count_rows() > _FEW:
            self._table.create_index("vector", config=HnswSq(distance_type="cosine", num_partitions=1))
        self._table.optimize(cleanup_older_than=timedelta(0))

    def search(self, text: str | None, vector: NDArray[np.float32] | None, tag: str | None) -> Sequence[int]:
        if text is not None and vector is not None:
            query: Any = self._table.search(query_type="hybrid").vector(vector).text(text)
            query = query.rerank(self._reranker)
        elif vector is not None:
            query = self._table.search(vector)
        else:
            query = self._table.search(text, query_type="fts")
        if vector is not None:
            query = query.distance_type("cosine").ef(self.effort).refine_factor(4)
        if tag is not None:
            query = query.where(f"tag = '{tag}'", prefilter=True)
        numbers: list[int] = query.select(["number"]).limit(TOP).to_arrow()["number"].to_pylist()
        return numbers
