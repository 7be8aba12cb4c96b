"""Search: every chunk that the filters leave gets its score, and the best are answered.

The scores of all chunks are computed, not those of some candidates: words and vectors are arrays over
the same rows. Cosines and filters are exact; of a question's words those within a budget count
(`words.py`), so that where a large base holds frequent words the ranking is not that of a full BM25.
"""

from __future__ import annotations

from dataclasses import dataclass

import apsw
import numpy as np
from numpy.typing import NDArray

from kb_contracts.api import models as m
from kb_engine.store import selection
from kb_engine.store.port import Found, Query, Scoring
from kb_engine.store.rows import CHUNK_COLUMNS, SUMMARY_COLUMNS, chunk, summary
from kb_engine.store.sqlite.connection import marks, rows
from kb_engine.store.sqlite.words import Corpus, Words
from kb_engine.vectors.port import Ids, VectorSnapshot

Floats = NDArray[np.float64]

DECIMALS = 6
"""Of a score: what lies beyond is noise of single precision and would order equals by chance."""


@dataclass(frozen=True, slots=True)
class _Scored:
    """Arrays over the chunks that the filters leave; a part that has no say is None."""

    chunk_ids: Ids
    scores: Floats
    cosines: Floats | None
    bm25: Floats | None
    scoring: Scoring

    @property
    def matches(self) -> NDArray[np.bool_]:
        """Which match by keyword, or by vector above the floor."""
        by_word = self.bm25 > 0 if self.bm25 is not None else np.zeros(len(self.scores), np.bool_)
        return by_word if self.cosines is None else by_word | (self.cosines >= self.scoring.cosine_floor)

    def is_weak(self, best: NDArray[np.intp]) -> bool:
        """Whether none of the best matches well."""
        if not len(best):
            return True
        near = self.cosines is not None and bool((self.cosines[best] >= self.scoring.cosine_floor).any())
        return not near and bool(self.scores[best[0]] < self.scoring.floor)


def search(db: apsw.Connection, vectors: VectorSnapshot, words: Words, query: Query) -> Found:
    """The best chunks, best first, ties by chunk id."""
    scored = _score(db, vectors, words, query)
    passing = scored.scores >= query.min_score
    # Without vectors nothing is near: only what holds a word can answer.
    answering = passing if scored.cosines is not None else passing & scored.matches
    best = _best(scored.scores, np.flatnonzero(answering), query.top)
    total = int(np.count_nonzero(scored.matches & passing))
    return Found(results=_results(db, scored, best, query), total=total, weak=scored.is_weak(best))


def _score(db: apsw.Connection, vectors: VectorSnapshot, words: Words, query: Query) -> _Scored:
    allowed = vectors.rows(selection.documents(db, query.selection))
    chunk_ids = vectors.chunks(allowed)
    cosines = bm25 = None
    if query.mode != "fts":
        if query.vector is None:
            raise ValueError(f"mode {query.mode} needs a vector")
        cosines = vectors.cosines(query.vector, allowed).astype(np.float64)
    if query.mode != "vector":
        bm25 = words.scores(
            db, query.text, Corpus(len(chunk_ids), vectors.size, vectors.generation, chunk_ids)
        )
    scores = _combine(cosines, bm25, query.scoring)
    return _Scored(chunk_ids, scores, cosines, bm25, query.scoring)


def _combine(cosines: Floats | None, bm25: Floats | None, scoring: Scoring) -> Floats:
    meaning = np.clip(cosines, 0.0, 1.0) if cosines is not None else None
    wording = bm25 / (bm25 + scoring.saturation) if bm25 is not None else None
    if meaning is None or wording is None:
        only = meaning if meaning is not None else wording
        assert only is not None, "a mode asks for one part at least"
        return np.asarray(np.round(only, DECIMALS), np.float64)
    mixed = scoring.weight * meaning + (1.0 - scoring.weight) * wording
    return np.asarray(np.round(np.clip(mixed, 0.0, 1.0), DECIMALS), np.float64)


def _best(scores: Floats, answering: NDArray[np.intp], top: int) -> NDArray[np.intp]:
    """The places of the best scores, best first; equal ones in the order of the chunks."""
    values = scores[answering]
    if len(values) > top:
        worst = np.partition(values, len(values) - top)[len(values) - top]
        answering = answering[values >= worst]
    order = np.argsort(-scores[answering], kind="stable")
    return answering[order[:top]]


def _results(
    db: apsw.Connection, scored: _Scored, best: NDArray[np.intp], query: Query
) -> list[m.SearchResult]:
    chunk_ids = [int(chunk_id) for chunk_id in scored.chunk_ids[best]]
    chunks = _chunks(db, chunk_ids)
    summaries = _summaries(db, {document_id for document_id, _ in chunks.values()})
    results = []
    for place, chunk_id in zip(best, chunk_ids, strict=True):
        document_id, found = chunks[chunk_id]
        document, tags = summaries[document_id]
        result = m.SearchResult(
            chunk=found, score=float(scored.scores[place]), document=document, tags=list(tags)
        )
        result.before, result.after = _neighbors(db, document_id, found.index, query.neighbors)
        result.explain = _explain(scored, int(place)) if query.explain else None
        results.append(result)
    return results


def _chunks(db: apsw.Connection, chunk_ids: list[int]) -> dict[int, tuple[int, m.Chunk]]:
    found = rows(
        db,
        f"SELECT c.document_id, {CHUNK_COLUMNS} FROM chunks c WHERE c.id IN ({marks(len(chunk_ids))})",  # noqa: S608
        chunk_ids,
    )
    return {one[1]: (one[0], chunk(one[1:])) for one in found}


def _summaries(db: apsw.Connection, document_ids: set[int]) -> dict[int, tuple[m.DocumentSummary, list[str]]]:
    found = rows(
        db,
        f"SELECT {SUMMARY_COLUMNS} FROM documents d WHERE d.id IN ({marks(len(document_ids))})",  # noqa: S608
        list(document_ids),
    )
    return {one[0]: summary(one) for one in found}


def _neighbors(
    db: apsw.Connection, document_id: int, position: int, count: int
) -> tuple[list[m.Chunk], list[m.Chunk]]:
    if not count:
        return [], []
    found = rows(
        db,
        f"SELECT {CHUNK_COLUMNS} FROM chunks c WHERE c.document_id = ? AND c.position BETWEEN ? AND ? "  # noqa: S608
        "ORDER BY c.position",
        (document_id, position - count, position + count),
    )
    around = [chunk(one) for one in found]
    return [c for c in around if c.index < position], [c for c in around if c.index > position]


def _explain(scored: _Scored, place: int) -> m.Explanation:
    cosine = float(scored.cosines[place]) if scored.cosines is not None else None
    bm25 = float(scored.bm25[place]) if scored.bm25 is not None else None
    return m.Explanation(
        cosine=cosine,
        bm25=bm25 or None,
        weight=scored.scoring.weight,
        saturation=scored.scoring.saturation,
    )
