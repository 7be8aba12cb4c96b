"""Consistency check of a database, document by document, and repair of derived data.

The truth of a document is its texts: the text of a note, with its hash, the passages of a file, and the
original file if it is kept. Derived data are the chunks of a note, the words and vectors of the index, and
counts. A damaged text is reported, so that it can be restored or sent again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

import numpy as np

from kb_contracts.api.errors import EngineError
from kb_contracts.semantics.documents import text_digest
from kb_engine.embed.context import Passage
from kb_engine.embed.offline import OfflineEmbedder
from kb_engine.index.port import Vectors
from kb_engine.store.port import Prepared, PreparedChunk
from kb_engine.store.repository import content, originals
from kb_engine.store.repository.content import Content
from kb_engine.store.store import Store

ALIKE = 0.98
"""Minimum cosine of two embeddings of the same text: other versions of a library differ a little."""

_PAGE = 200
_UNIT = 0.01


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a document. `derived`: it can be repaired from intact data."""

    what: str
    derived: bool


NO_WORDS = Fault("words are missing in the index", derived=True)
OTHER_VECTOR = Fault("a vector is not that of its passage", derived=True)


@dataclass(frozen=True, slots=True)
class Finding:
    """A damaged document with all its faults; `repaired` if they were repaired."""

    document_id: int
    title: str
    faults: Sequence[str]
    repaired: bool


def faults_of(document: Content, dimensions: int, expected: Vectors | None = None) -> list[Fault]:
    """Return the faults of a document. `expected` are freshly computed vectors of its chunks."""
    faults = []
    is_right = document.text is not None and text_digest(document.text)[0] == document.sha256
    if document.text is not None and not is_right:
        faults.append(Fault("its text is not the one that was sent", derived=False))
    if [*document.positions] != [*range(len(document.positions))]:
        faults.append(Fault("passages are missing", derived=False))
    elif document.chunk_count != len(document.chunks):
        faults.append(Fault("it counts other passages than it has", derived=True))
    if any(_is_elsewhere(chunk, document.text) for chunk in document.chunks):
        faults.append(Fault("a passage is not what stands in its text", derived=is_right))
    if any(_is_no_vector(vector, dimensions) for vector in document.vectors):
        faults.append(Fault("a vector is missing or damaged", derived=True))
    elif expected is not None and any(
        is_of_another(vector, right) for vector, right in zip(document.vectors, expected, strict=True)
    ):
        faults.append(OTHER_VECTOR)
    return faults


def is_of_another(vector: Vectors | None, expected: Vectors) -> bool:
    """True if a vector does not belong to its passage, whose fresh vector is `expected`."""
    return vector is not None and float(vector @ expected) < ALIKE


def mended(document: Content) -> list[PreparedChunk]:
    """Return the repaired chunks; those of a note are cut from its text again."""
    if document.text is None:
        return [*document.chunks]
    return [replace(chunk, text=document.text[chunk.start : chunk.end]) for chunk in document.chunks]


def _is_elsewhere(chunk: PreparedChunk, text: str | None) -> bool:
    if text is None:
        return chunk.end - chunk.start != len(chunk.text)
    return text[chunk.start : chunk.end] != chunk.text


def _is_no_vector(vector: Vectors | None, dimensions: int) -> bool:
    if vector is None or vector.shape != (dimensions,) or not np.isfinite(vector).all():
        return True
    return abs(float(np.linalg.norm(vector)) - 1) > _UNIT


async def file_fault(store: Store, document_id: int) -> Fault | None:
    """Return the fault of a document's original file, or None if it is intact or not kept."""
    sha256 = await store.read(originals.of, document_id)
    if sha256 is None:
        return None
    digest = hashlib.sha256()
    try:
        async with aclosing(store.original(sha256)) as blocks:
            async for block in blocks:
                digest.update(block)
    except EngineError as error:
        if error.code != "original_not_kept":
            raise
        return Fault("its file is missing", derived=False)
    return (
        None
        if digest.hexdigest() == sha256
        else Fault("its file is not the one that was sent", derived=False)
    )


class Check:
    """Examines each document of a database, and repairs derived data on request."""

    def __init__(self, store: Store, embedder: OfflineEmbedder, *, deep: bool, repair: bool) -> None:
        """`deep`: embed each passage again and compare. `repair`: repair faults of derived data."""
        self._store = store
        self._embedder = embedder
        self._deep = deep
        self._repair = repair
        self.documents = 0
        """Number of documents examined so far."""

    async def damage(self) -> list[str]:
        """Return the damage found by the database's own check."""
        return await self._store.read(content.damage)

    async def findings(self) -> AsyncIterator[Finding]:
        """Yield the damaged documents.

        Raises:
            EmbedderUnavailable: an outage of the embedder lasted too long.
            TextRefused: the embedder refuses a text.
        """
        last = 0
        while numbers := await self._store.read(content.ids_after, last, _PAGE):
            for last in numbers:
                document = await self._store.read(content.content, last)
                if document is not None:
                    self.documents += 1
                    if (finding := await self._examine(document)) is not None:
                        yield finding

    async def _examine(self, document: Content) -> Finding | None:
        expected = (
            await asyncio.to_thread(self._embed, document.title, document.chunks) if self._deep else None
        )
        faults = faults_of(document, self._store.dimensions, expected)
        if await self._store.read(content.lacks_words, document.id):
            faults.append(NO_WORDS)
        if (fault := await file_fault(self._store, document.id)) is not None:
            faults.append(fault)
        if not faults:
            return None
        may_be_mended = self._repair and all(fault.derived for fault in faults)
        if may_be_mended:
            await self._store.write(
                content.renew, document.id, await asyncio.to_thread(self._prepare, document)
            )
        return Finding(document.id, document.title, [fault.what for fault in faults], may_be_mended)

    def _embed(self, title: str, chunks: Sequence[PreparedChunk]) -> Vectors:
        passages = [Passage(title, chunk.heading, chunk.text) for chunk in chunks]
        return self._embedder.embed(passages, context=self._store.context)

    def _prepare(self, document: Content) -> Prepared:
        chunks = mended(document)
        counted = [replace(chunk, tokens=self._embedder.count_tokens(chunk.text)) for chunk in chunks]
        return Prepared(
            title=document.title,
            extraction_method=document.extraction_method,
            pages=document.pages,
            chunks=counted,
            vectors=self._embed(document.title, counted),
            status_reason=document.status_reason,
            language=document.language,
        )
