"""A remote index: it knows only the changes applied to it, and may be unavailable.

It keeps documents in a dictionary and scores all of them with textbook BM25, so that its scores equal those
of the indexes in the stores' databases.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from kb_engine.index.port import (
    Candidates,
    Changes,
    IndexedDocument,
    IndexQuery,
    IndexStats,
    IndexUnavailable,
    Selection,
)
from kb_engine.index.score import select
from kb_engine.index.words import Analyser, weigh_words

K1, B = 1.5, 0.75


@dataclass
class Server:
    """The server side of the index, which outlives an engine."""

    documents: dict[int, IndexedDocument] | None = None
    """None if there is no index, or if it was lost."""
    generation: int = 0
    created: int = 0
    out_of_service: bool = False
    breaks_after: int | None = None
    """Number of documents of the next changes that are accepted before the connection breaks."""

    async def lose_everything(self) -> None:
        self.documents, self.generation = None, 0

    def index(self) -> RemoteIndex:
        return RemoteIndex(self)


class RemoteIndex:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def _call(self) -> Server:
        await asyncio.sleep(0)  # other tasks run in between, as with a network
        if self._server.out_of_service:
            raise IndexUnavailable("nobody answers")
        return self._server

    async def generation(self) -> int:
        return (await self._call()).generation

    async def apply(self, changes: Changes, generation: int) -> None:
        server = await self._call()
        if server.documents is None:
            raise IndexUnavailable("the index was lost")
        if generation < server.generation:
            return
        if changes.cleared:
            server.documents.clear()
        for document_id in changes.deletes:
            server.documents.pop(document_id, None)
        for document in changes.upserts:
            if server.breaks_after == 0:
                server.breaks_after = None
                raise IndexUnavailable("the connection broke")
            if server.breaks_after is not None:
                server.breaks_after -= 1
            server.documents[document.id] = document
        server.generation = generation

    async def search(self, query: IndexQuery) -> Candidates:
        server = await self._call()
        documents = list((server.documents or {}).values())
        chosen = [one for one in documents if all(_conditions(one, query.selection))]
        wanted = set(query.among if query.among is not None else (i for one in chosen for i in one.chunk_ids))
        of_chunks = sorted((i, one) for one in chosen for i in one.chunk_ids if i in wanted)
        ids = np.array([chunk_id for chunk_id, _ in of_chunks], np.int64)
        cosines = bm25 = None
        reach = 0.0
        if query.vector is not None and query.mode != "fts":
            rows = [one.vectors[list(one.chunk_ids).index(chunk_id)] for chunk_id, one in of_chunks]
            found = np.vecdot(np.array(rows, np.float32).reshape(len(rows), len(query.vector)), query.vector)
            cosines = found.astype(np.float64)
        if query.mode != "vector":
            scores, reach = _bm25(documents, query.text, query.languages)
            bm25 = np.array([scores.get(chunk_id, 0.0) for chunk_id in ids.tolist()])
        return replace(select(ids, cosines, bm25, query, reach), generation=server.generation)

    async def create(self, dimensions: int) -> None:
        server = await self._call()
        server.documents, server.generation = {}, 0
        server.created += 1

    async def drop(self) -> None:
        await (await self._call()).lose_everything()

    async def stats(self) -> IndexStats:
        server = await self._call()
        documents = server.documents or {}
        chunks = sum(len(one.chunk_ids) for one in documents.values())
        return IndexStats(len(documents), chunks, server.generation)

    async def close(self) -> None:
        """Do nothing: the server stays."""


def _bm25(
    documents: list[IndexedDocument], text: str, languages: Sequence[str]
) -> tuple[dict[int, float], float]:
    """Return the score of each chunk that contains a word, and the highest possible score of the query."""
    postings: dict[str, list[tuple[int, int, int]]] = {}
    lengths: list[int] = []
    for one in documents:
        chunks = _analysed(one.title, tuple(one.headings), tuple(one.texts), one.language)
        for chunk_id, (length, frequencies) in zip(one.chunk_ids, chunks, strict=True):
            lengths.append(length)
            for term, frequency in frequencies.items():
                postings.setdefault(term, []).append((chunk_id, frequency, length))
    average = sum(lengths) / len(lengths) if lengths else 1.0
    scores: dict[int, float] = {}
    counts = {term: len(found) for term, found in postings.items()}
    weights, reach = weigh_words(Analyser().words_of(text, languages), counts, len(lengths))
    for term, weight in weights.items():
        for chunk_id, frequency, length in postings.get(term, []):
            part = weight * frequency * (K1 + 1) / (frequency + K1 * (1 - B + B * length / average))
            scores[chunk_id] = scores.get(chunk_id, 0.0) + part
    return scores, reach


@cache
def _analysed(
    title: str, headings: tuple[str | None, ...], texts: tuple[str, ...], language: str | None
) -> list[tuple[int, Counter[str]]]:
    """Return the length of each chunk, and the frequencies of its terms."""
    found = Analyser().chunks(title, zip(headings, texts, strict=True), language)
    return [(each.length, Counter(each.terms)) for each in found]


def _conditions(one: IndexedDocument, wanted: Selection) -> Iterator[bool]:
    yield set(wanted.tags) <= set(one.tags)
    yield not wanted.tags_any or bool(set(wanted.tags_any) & set(one.tags))
    yield wanted.doc_type in {None, one.doc_type}
    yield not wanted.formats or one.format in wanted.formats
    yield not wanted.source_types or one.source_type in wanted.source_types
    prefix = wanted.source_path_prefix
    yield not prefix or any(path.startswith(prefix) for path in one.source_paths)
    moment = one.created_at if wanted.date_field == "created_at" else one.updated_at
    yield wanted.date_from is None or moment >= wanted.date_from
    yield wanted.date_to is None or moment <= wanted.date_to
