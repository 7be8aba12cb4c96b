"""pgvector and PostgreSQL's own text search, on a server of its own; fused by ranks.

HNSW over halfvec, with an iterative scan where the tag leaves few; words by `ts_rank_cd`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import asyncpg
import numpy as np
from numpy.typing import NDArray

from bench.corpus import DIMENSIONS, TAG, TOP, Document
from bench.peers import CANDIDATES, LoopThread, Peer, fused
from kb_load.postgres import PostgresServer

_SETTINGS = {"shared_buffers": "1GB", "maintenance_work_mem": "1GB", "synchronous_commit": "on"}
_TABLES = f"""
CREATE EXTENSION IF NOT EXISTS vector;
CREATE TABLE IF NOT EXISTS passages (
  number bigint PRIMARY KEY, tag text, text text, vector halfvec({DIMENSIONS}),
  words tsvector GENERATED ALWAYS AS (to_tsvector('english', text)) STORED)
"""
_INDEXES = """
CREATE INDEX ON passages USING gin (words);
CREATE INDEX ON passages (tag);
CREATE INDEX ON passages USING hnsw (vector halfvec_ip_ops);
ANALYZE passages
"""
_WORDS = (
    "SELECT number FROM passages, to_tsquery('english', $1) query WHERE words @@ query {} "
    "ORDER BY ts_rank_cd(words, query) DESC LIMIT $2"
)
_NEAR = "SELECT number FROM passages WHERE true {} ORDER BY vector <#> $1::text::halfvec LIMIT $2"


class Pgvector(Peer):
    efforts = (40, 100, 200, 400, 800)
    effort = efforts[0]

    def __init__(self, folder: Path) -> None:
        self._server = PostgresServer(folder, _SETTINGS)
        self._server.start()
        self._loop = LoopThread()
        self._pool: Any = self._loop.run(self._open())

    async def _open(self) -> Any:
        pool = await asyncpg.create_pool(self._server.url("postgres"), min_size=1, max_size=4)
        await pool.execute(_TABLES)
        return pool

    def insert(self, documents: Sequence[Document]) -> None:
        rows = [
            (each.first + place, TAG if each.tagged else "", text, _text(vector))
            for each in documents
            for place, (text, vector) in enumerate(zip(each.full_texts, each.vectors, strict=True))
        ]
        sql = "INSERT INTO passages (number, tag, text, vector) VALUES ($1, $2, $3, $4::text::halfvec)"
        self._loop.run(self._pool.executemany(sql, rows))

    def finish(self) -> None:
        self._loop.run(self._pool.execute(_INDEXES))

    def search(self, text: str | None, vector: NDArray[np.float32] | None, tag: str | None) -> Sequence[int]:
        return self._loop.run(self._search(text, vector, tag))

    async def _search(
        self, text: str | None, vector: NDArray[np.float32] | None, tag: str | None
    ) -> Sequence[int]:
        depth = TOP if text is None or vector is None else CANDIDATES
        tagged, values = ("", ()) if tag is None else ("AND tag = $3", (tag,))
        rankings = []
        async with self._pool.acquire() as db, db.transaction():
            await db.execute(
                f"SET LOCAL hnsw.ef_search = {self.effort}; SET LOCAL hnsw.iterative_scan = strict_order"
            )
            if text is not None:
                words = " | ".join(re.findall(r"\w+", text))
                rankings.append(await db.fetch(_WORDS.format(tagged), words, depth, *values))
            if vector is not None:
                rankings.append(await db.fetch(_NEAR.format(tagged), _text(vector), depth, *values))
        numbers = [[row["number"] for row in ranking] for ranking in rankings]
        return numbers[0] if len(numbers) == 1 else fused(*numbers)

    def close(self) -> None:
        self._loop.run(self._pool.close())
        self._loop.close()
        self._server.stop("fast")


def _text(vector: NDArray[np.float32]) -> str:
    return f"[{','.join(map(str, vector.tolist()))}]"
