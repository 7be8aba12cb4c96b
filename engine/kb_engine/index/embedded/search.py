"""Search in a SQLite base: every chunk that the filters leave gets its score, and the best are returned.

The scores of all chunks are computed, not those of some candidates: words and vectors are arrays over
the same rows. Cosines and filters are exact; of a question's words those within a budget count
(`kb_engine.index.words`), so that where a large base holds frequent words the ranking is not that of a
full BM25.
"""

from __future__ import annotations

import apsw
import numpy as np

from kb_engine.index.embedded.vectors import Snapshot
from kb_engine.index.embedded.words import Corpus, Words
from kb_engine.index.port import Candidates, Ids, IndexQuery
from kb_engine.index.ranking import select


def search(
    db: apsw.Connection, vectors: Snapshot, words: Words, documents: Ids | None, query: IndexQuery
) -> Candidates:
    """The best chunks of these documents (None: of all), best first.

    `db` and `vectors` are of the same state of the base.
    """
    rows = vectors.rows(documents)
    chunk_ids = vectors.chunks(rows)
    cosines = bm25 = None
    if query.mode != "fts":
        assert query.vector is not None, "the mode needs one"
        cosines = vectors.cosines(query.vector, rows).astype(np.float64)
    if query.mode != "vector":
        corpus = Corpus(len(chunk_ids), vectors.size, vectors.generation, chunk_ids)
        bm25 = words.scores(db, query.text, corpus)
    return select(chunk_ids, cosines, bm25, query)
