"""Pages of original files as pictures, drawn in the process that reads files.

access scope ─▶ document and passage ─▶ the cache ─▶ a turn ─▶ the original ─▶ a child draws ─▶ the cache

The cache is looked at last, so that a picture is never returned to a caller who may not read its document.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import aclosing
from tempfile import TemporaryFile
from typing import NamedTuple

from msgspec.structs import replace

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.api.formats import FORMATS
from kb_contracts.api.operations import PictureQuery
from kb_contracts.semantics.documents import picture_of
from kb_engine.extract import DRAWN_HERE
from kb_engine.store.repository import documents, state
from kb_engine.store.store import Store
from kb_readers.failures import ExtractionFailed
from kb_readers.memory import MemoryBudget
from kb_readers.model import Limits, Page
from kb_readers.readers import draw_file

_AT_ONCE = 2
_MOST_SECONDS = 20.0
"""Time for drawing a page, and for waiting for a turn, in seconds."""
_CACHE_BYTES = 64 << 20
_CACHE_SECONDS = 300.0
"""Time after which the cache is emptied, in seconds, so that pictures do not outlive their documents."""


class _Wanted(NamedTuple):
    """A page of a file, and the text to mark on it."""

    sha256: str
    page: int
    text: str


class Pictures:
    """Draws pages of the originals in `store`, within the limits and the memory of the readers."""

    def __init__(self, store: Store, limits: Limits, memory: MemoryBudget) -> None:
        self._store = store
        self._limits = replace(limits, wall_seconds=min(limits.wall_seconds, _MOST_SECONDS))
        self._memory = memory
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._generation = 0
        self._cache: OrderedDict[_Wanted, m.Picture] = OrderedDict()

    async def get(self, key: int | str, query: PictureQuery) -> m.Picture:
        """Return the page of a document, with a chunk marked. Raises EngineError."""
        generation = await self._store.read(state.generation)
        if generation != self._generation:  # a document was changed, removed, or moved out of a scope
            self._forget()
            self._generation = generation
        document = await self._store.read(
            documents.detail,
            key,
            chunk_offset=query.chunk or 0,
            chunk_limit=0 if query.chunk is None else 1,
            text=False,
        )
        wanted = _Wanted(document.sha256, *picture_of(document, query.page))
        if wanted in self._cache:
            self._cache.move_to_end(wanted)
            return self._cache[wanted]
        picture = await self._drawn(wanted, document.format or "")
        if generation == self._generation:
            self._keep(wanted, picture)
        return picture

    @property
    def count(self) -> int:
        """The number of pictures in the cache."""
        return len(self._cache)

    def _forget(self) -> None:
        self._cache.clear()

    def _keep(self, wanted: _Wanted, picture: m.Picture) -> None:
        if not self._cache:
            asyncio.get_running_loop().call_later(_CACHE_SECONDS, self._forget)
        self._cache[wanted] = picture
        while sum(len(each.content) for each in self._cache.values()) > _CACHE_BYTES:
            self._cache.popitem(last=False)

    async def _drawn(self, wanted: _Wanted, name: str) -> m.Picture:
        try:
            async with asyncio.timeout(_MOST_SECONDS):
                await self._turns.acquire()
        except TimeoutError:
            busy = "Other pages are being drawn."
            raise EngineError("not_ready", busy, retry_after=_MOST_SECONDS) from None
        try:
            with TemporaryFile() as file:
                async with aclosing(self._store.original(wanted.sha256)) as blocks:
                    async for block in blocks:
                        await asyncio.to_thread(file.write, block)
                await asyncio.to_thread(file.seek, 0)
                page = Page(wanted.page, wanted.text)
                drawn = await draw_file(
                    file, FORMATS[name], page, self._limits, memory=self._memory, drawn=DRAWN_HERE
                )
        except ExtractionFailed as failed:
            raise EngineError(failed.code, failed.message) from failed
        finally:
            self._turns.release()
        return m.Picture(media_type=drawn.media_type, content=drawn.content)
