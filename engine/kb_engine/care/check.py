"""Consistency check of a database, document by document, and repair of derived data.

The truth of a document is its texts: the text of a note and the passages of a file, each with a hash, and the
original file if it is kept. Derived data are the chunks of a note, the words and vectors of the index, and
counts. A damaged text is reported, so that it can be restored or sent again.

Vectors are computed again only from undamaged passages: the vector of a damaged text would hide the damage.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

import numpy as np

from kb_contracts.api.errors import EngineError
from kb_engine.chunk import chunks as chunks_of
from kb_engine.embed.context import Passage
from kb_engine.embed.offline import OfflineEmbedder
from kb_engine.index.port import Vectors
from kb_engine.store.port import Prepared, PreparedChunk
from kb_engine.store.repository import content, originals, versions
from kb_engine.store.repository.content import Content
from kb_engine.store.store import Store
from kb_readers.model import Extraction

ALIKE = 0.98  # minimum cosine of two embeddings of the same text: other versions of a library differ a little

_PAGE = 200
_VERSIONS = 20
_UNIT = 0.01


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a document. `derived`: it can be repaired from intact data.

    `remedy` is what a repair does, or why it can do nothing. `in_passages`: the texts of the passages are not
    reliable, so nothing is derived from them.
    """

    what: str
    derived: bool
    remedy: str
    in_passages: bool = False


_NO_OTHER_TEXT = "the base has no other copy of the text"
_NO_OTHER_FILE = "the base has no other copy of the file"
_CHUNKED = "passages made again from its text"
_EMBEDDED = "embedded again"
_HELD_BACK = "the passages are to be right first"

NO_WORDS = Fault("words are missing in the index", derived=True, remedy="indexed again")
OTHER_VECTOR = Fault("a vector is not that of its passage", derived=True, remedy=_EMBEDDED)


@dataclass(frozen=True, slots=True)
class Finding:
    """A damaged document and its faults; `done` lists the repairs, `left` the rest with its reasons."""

    document_id: int
    title: str
    faults: Sequence[str]
    repaired: bool
    done: Sequence[str] = ()
    left: Sequence[str] = ()


def faults_of(document: Content, dimensions: int, expected: Vectors | None = None) -> list[Fault]:
    """Return the faults of a document. `expected` are freshly computed vectors of its chunks."""
    faults = []
    if not document.has_its_text:
        gone = document.text is None
        what = "its text is gone" if gone else "its text is not the one that was sent"
        faults.append(Fault(what, derived=False, remedy=_NO_OTHER_TEXT))
    if (fault := _fault_of_passages(document)) is not None:
        faults.append(fault)
    elif document.chunk_count != len(document.chunks):
        faults.append(Fault("it counts other passages than it has", derived=True, remedy="counted again"))
    if any(_is_no_vector(vector, dimensions) for vector in document.vectors):
        faults.append(Fault("a vector is missing or damaged", derived=True, remedy=_EMBEDDED))
    elif expected is not None and any(
        is_of_another(vector, right) for vector, right in zip(document.vectors, expected, strict=True)
    ):
        faults.append(OTHER_VECTOR)
    return faults


def _fault_of_passages(document: Content) -> Fault | None:
    of_note = document.kind == "note" and document.has_its_text
    if not document.has_all_positions or (
        len(document.chunks) < document.chunk_count and document.passages_hash != document.hash_of_passages
    ):
        what = "passages are missing"
    elif any(_is_elsewhere(chunk, document.text) for chunk in document.chunks):
        what = "a passage is not what stands in its text"
    elif not document.has_its_passages:
        what = "a passage is not the one that was stored"
    else:
        return None
    remedy = _CHUNKED if of_note else "passages of a file are kept once"
    if not of_note and document.kind == "note":
        remedy = _NO_OTHER_TEXT
    return Fault(what, derived=of_note, remedy=remedy, in_passages=True)


def is_of_another(vector: Vectors | None, expected: Vectors) -> bool:
    """True if a vector does not belong to its passage, whose fresh vector is `expected`."""
    return vector is not None and float(vector @ expected) < ALIKE


def mended(document: Content, embedder: OfflineEmbedder) -> list[PreparedChunk]:
    """Return the repaired chunks.

    Those of a note are cut from its text again; if that does not give the stored chunks, the text is split
    again. A passage at the place of a stored one keeps its uid, so that citations remain valid.
    """
    text = document.text
    if text is None:
        return [*document.chunks]
    placed = [replace(chunk, text=text[chunk.start : chunk.end]) for chunk in document.chunks]
    right = replace(document, chunks=placed)
    if right.has_its_passages and (document.passages_hash or len(placed) == document.chunk_count):
        return placed
    uids = {(chunk.start, chunk.end): chunk.uid for chunk in document.chunks}
    extraction, count, most = Extraction.of_note(text), embedder.count_tokens, embedder.max_tokens
    return [
        replace(each, uid=uids.get((each.start, each.end)))
        for each in chunks_of(extraction, count_tokens=count, max_tokens=most)
    ]


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
        return Fault("its file is missing", derived=False, remedy=_NO_OTHER_FILE)
    return (
        None
        if digest.hexdigest() == sha256
        else Fault("its file is not the one that was sent", derived=False, remedy=_NO_OTHER_FILE)
    )


class Check:
    """Examines each document of a database, and repairs derived data on request."""

    def __init__(self, store: Store, embedder: OfflineEmbedder, *, deep: bool, repair: bool) -> None:
        """`deep`: embed each passage again and compare. `repair`: repair faults of derived data."""
        self._store = store
        self._embedder = embedder
        self._deep = deep
        self._repair = repair
        self.documents = 0  # number of documents examined so far

    async def hurt_versions(self) -> AsyncIterator[Finding]:
        """Yield the kept versions whose text has changed. They cannot be repaired."""
        last = 0
        while True:
            hurt, last = await self._store.read(versions.hurt_after, last, _VERSIONS)
            for each in hurt:
                what = f"the text of its version {each.version} is not the one that was kept"
                left = [f"{what} ({_NO_OTHER_TEXT})"]
                yield Finding(each.document_id, each.title, [what], repaired=False, left=left)
            if not last:
                return

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
        distrusted = any(fault.in_passages and not fault.derived for fault in faults)
        derived = [] if distrusted or not self._repair else [fault for fault in faults if fault.derived]
        if derived:
            await self._store.write(
                content.renew, document.id, await asyncio.to_thread(self._prepare, document)
            )
        return Finding(
            document.id,
            document.title,
            [fault.what for fault in faults],
            repaired=len(derived) == len(faults),
            done=[f"{fault.what} ({fault.remedy})" for fault in derived],
            left=[
                f"{fault.what} ({_HELD_BACK if fault.derived else fault.remedy})"
                for fault in faults
                if fault not in derived
            ]
            if self._repair
            else [],
        )

    def _embed(self, title: str, chunks: Sequence[PreparedChunk]) -> Vectors:
        passages = [Passage(title, chunk.heading, chunk.text) for chunk in chunks]
        return self._embedder.embed(passages, context=self._store.context)

    def _prepare(self, document: Content) -> Prepared:
        chunks = mended(document, self._embedder)
        counted = [replace(chunk, tokens=self._embedder.count_tokens(chunk.text)) for chunk in chunks]
        return document.prepared(counted, self._embed(document.title, counted))
