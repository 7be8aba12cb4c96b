"""Another embedder for a base that is not in use: every chunk embedded again, then one switch.

The new vectors gather beside the old ones, a batch a transaction, so that what was interrupted goes on
where it stopped. Until the switch the base opens with its old embedder as if nothing had begun.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import apsw
import numpy as np

from kb_engine.index.port import Vectors
from kb_engine.store.failures import NotABase
from kb_engine.store.port import EmbedderIdentity
from kb_engine.store.reindexing import BATCH, Progress, check_shape
from kb_engine.store.sqlite.connection import rows, transaction, value
from kb_engine.store.sqlite.content import VECTOR_TYPE
from kb_engine.store.sqlite.opening import latest, own
from kb_engine.store.sqlite.schema import set_embedder, set_meta

_NEXT = """
CREATE TABLE next_vectors (
  chunk_id INTEGER PRIMARY KEY REFERENCES chunks (id) ON DELETE CASCADE,
  vector BLOB NOT NULL
)
"""
_BATCH_OF_MISSING = (
    "SELECT id, text FROM chunks WHERE id NOT IN (SELECT chunk_id FROM next_vectors) ORDER BY id LIMIT ?"
)
_SWITCH = """
DELETE FROM vectors;
INSERT INTO vectors SELECT chunk_id, vector FROM next_vectors;
DROP TABLE next_vectors;
DELETE FROM meta WHERE name = 'next_embedder';
"""


def reindex_sqlite(
    path: Path,
    *,
    embedder: EmbedderIdentity,
    embed: Callable[[Sequence[str]], Vectors],
    progress: Progress = lambda _done, _total: None,
) -> int:
    """Embed all chunks of a base again and make `embedder` its own; how many chunks. Blocks.

    Chunks keep their text: those that are longer than the new embedder's window are embedded in part.
    `progress` is called with how many of how many are done. It may be stopped and started again.

    Raises:
        BaseRefused: the base is in use, or is none.
    """
    if not path.exists():
        raise NotABase(path, "there is none. Name the base that the engine uses.")
    lock = own(path)
    try:
        with latest(lock.path) as db:
            total: int = value(db, "SELECT count(*) FROM chunks")
            _begin(db, embedder)
            done: int = value(db, "SELECT count(*) FROM next_vectors")
            while found := rows(db, _BATCH_OF_MISSING, (BATCH,)):
                progress(done, total)
                _keep(db, [chunk_id for chunk_id, _ in found], embed([text for _, text in found]), embedder)
                done += len(found)
            with transaction(db):
                db.execute(_SWITCH)
                set_embedder(db, embedder)
            progress(total, total)
            return total
    finally:
        lock.release()


def _begin(db: apsw.Connection, embedder: EmbedderIdentity) -> None:
    """Go on with what was begun for this embedder; drop what was begun for another."""
    wanted = f"{embedder.dimensions} {embedder.name}"
    if value(db, "SELECT value FROM meta WHERE name = 'next_embedder'") == wanted:
        return
    with transaction(db):
        db.execute("DROP TABLE IF EXISTS next_vectors")
        db.execute(_NEXT)
        set_meta(db, "next_embedder", wanted)


def _keep(db: apsw.Connection, ids: Sequence[int], vectors: Vectors, embedder: EmbedderIdentity) -> None:
    check_shape(vectors, len(ids), embedder)
    raw = np.ascontiguousarray(vectors, VECTOR_TYPE)
    with transaction(db):
        db.executemany(
            "INSERT INTO next_vectors (chunk_id, vector) VALUES (?, ?)",
            ((chunk_id, vector.tobytes()) for chunk_id, vector in zip(ids, raw, strict=True)),
        )
