"""Import of documents from another database, while no engine uses this one.

They come with their passages, which are embedded here, so that searches find them as in the source even if
their original files are not imported.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Container, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from uuid import uuid4

from kb_contracts.api import models as m
from kb_contracts.api import ragler as r
from kb_engine.composition import open_store
from kb_engine.embed.context import Passage
from kb_engine.embed.offline import OfflineEmbedder
from kb_engine.index.languages import PASSAGES, language_of
from kb_engine.settings import EngineSettings
from kb_engine.spool import Spool
from kb_engine.store.port import Arrival, Prepared, PreparedChunk
from kb_engine.store.repository import arrivals, collections, documents
from kb_engine.store.store import BLOCK_BYTES, Store


@dataclass(frozen=True, slots=True)
class Contents:
    """The extracted content of a document: its passages, and how they were extracted."""

    chunks: Sequence[PreparedChunk]
    extraction_method: str
    pages: int | None
    status_reason: str | None
    fidelity: m.Fidelity | None = None


class Arrivals:
    """A database that imports documents, and its embedder. `uids` has the uids of the whole import."""

    def __init__(self, store: Store, spool: Spool, embedder: OfflineEmbedder, uids: Container[str]) -> None:
        self._store = store
        self._spool = spool
        self._embedder = embedder
        self._uids = uids

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, settings: EngineSettings, embedder: OfflineEmbedder, uids: Container[str]
    ) -> AsyncIterator[Self]:
        """Yield the database of the settings, open until the block ends.

        Raises:
            BaseRefused: the base cannot be opened, for instance because an engine uses it.
            StartError: its folder cannot be written, or a package is not installed.
        """
        store, spool = await open_store(settings, embedder.identity)
        try:
            yield cls(store, spool, embedder, uids)
        finally:
            await store.close()

    async def take_in(self, arrival: Arrival, contents: Contents, original: Path | None = None) -> bool:
        """Import a document; return False if it exists already (`repository.arrivals`).

        The file `original`, whose SHA-256 is the arrival's, is kept.

        Raises:
            EmbedderUnavailable: an outage of the embedder lasted too long.
            TextRefused: the embedder refuses a text.
        """
        if await self._store.read(documents.has, arrival.uid):
            return False
        prepared = await asyncio.to_thread(self._prepare, arrival.title, contents)
        if original is None:
            return await self._store.write(arrivals.arrive, arrival, prepared, of_the_same=self._uids)
        name = f"arrival-{uuid4()}"
        async with self._spool.receive(name) as received:
            with original.open("rb") as file:
                while block := await asyncio.to_thread(file.read, BLOCK_BYTES):
                    await received.write(block)
        try:
            return await self._store.write(arrivals.arrive, arrival, prepared, name, of_the_same=self._uids)
        finally:
            await self._spool.remove(name)

    async def describe(self, id_: str, wanted: r.CollectionRequest) -> None:
        """Describe a collection. Raises `EngineError` if its name or id is taken."""
        await self._store.write(collections.put, id_, wanted)

    def _prepare(self, title: str, contents: Contents) -> Prepared:
        passages = [Passage(title, each.heading, each.text) for each in contents.chunks]
        return Prepared(
            title=title,
            extraction_method=contents.extraction_method,
            pages=contents.pages,
            chunks=contents.chunks,
            vectors=self._embedder.embed(passages, context=self._store.context),
            status_reason=contents.status_reason,
            fidelity=contents.fidelity,
            language=language_of(title, [each.text for each in contents.chunks[:PASSAGES]]),
        )
