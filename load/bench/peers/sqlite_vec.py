"""FTS5 and sqlite-vec, which scans all vectors, in one SQLite base; fused by ranks."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from pathlib import Path

import apsw
import numpy as np
import sqlite_vec
from numpy.typing import NDArray

from bench.corpus import DIMENSIONS, TAG, TOP, Document
from bench.peers import CANDIDATES, Peer, fused
from kb_engine.index.words import TOKENIZER

_WORDS = (
    "SELECT rowid FROM words WHERE words MATCH ? "
    "AND (? OR rowid IN (SELECT number FROM passages WHERE tagged)) ORDER BY rank LIMIT ?"
)
_NEAR = "SELECT rowid FROM near WHERE vector MATCH ? AND k = ?"


class SqliteVec(Peer):
    def __init__(self, folder: Path) -> None:
        self._path = folder / "passages.sqlite"
        self._own = threading.local()
        self._db.execute(
            f"""
            PRAGMA journal_mode = wal;
            CREATE TABLE IF NOT EXISTS passages (number INTEGER PRIMARY KEY, text, tagged);
            CREATE INDEX IF NOT EXISTS passages_tagged ON passages (number) WHERE tagged;
            CREATE VIRTUAL TABLE IF NOT EXISTS words
              USING fts5 (text, content = passages, content_rowid = number, tokenize = '{TOKENIZER}');
            CREATE VIRTUAL TABLE IF NOT EXISTS near
              USING vec0 (vector float[{DIMENSIONS}] distance_metric=cosine, tag text);
            """
        ).fetchall()  # stops at the first row, the pragma's

    @property
    def _db(self) -> apsw.Connection:
        """Return the connection of this thread."""
        db: apsw.Connection | None = getattr(self._own, "db", None)
        if db is None:
            db = self._own.db = apsw.Connection(str(self._path))
            db.enable_load_extension(True)
            db.load_extension(sqlite_vec.loadable_path())
        return db

    def insert(self, documents: Sequence[Document]) -> None:
        with self._db as db:
            for each in documents:
                numbers = range(each.first, each.first + len(each.texts))
                passages = list(zip(numbers, each.full_texts, strict=True))
                db.executemany(
                    "INSERT INTO passages VALUES (?, ?, ?)", [(*one, each.tagged) for one in passages]
                )
                db.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", passages)
                tag = TAG if each.tagged else ""
                db.executemany(
                    "INSERT INTO near (rowid, vector, tag) VALUES (?, ?, ?)",
                    [(one, v.tobytes(), tag) for one, v in zip(numbers, each.vectors, strict=True)],
                )

    def finish(self) -> None:
        self._db.execute("INSERT INTO words (words) VALUES ('optimize')")

    def search(self, text: str | None, vector: NDArray[np.float32] | None, tag: str | None) -> Sequence[int]:
        depth = TOP if text is None or vector is None else CANDIDATES
        rankings = []
        if text is not None:
            expression = " OR ".join(re.findall(r"\w+", text))
            rankings.append([one for (one,) in self._db.execute(_WORDS, (expression, tag is None, depth))])
        if vector is not None:
            sql, values = (_NEAR, ()) if tag is None else (f"{_NEAR} AND tag = ?", (tag,))
            rankings.append([one for (one,) in self._db.execute(sql, (vector.tobytes(), depth, *values))])
        return rankings[0] if len(rankings) == 1 else fused(*rankings)

    def close(self) -> None:
        self._db.close()
