"""Pages of original files as pictures, drawn in the process that reads files.

access scope ─▶ document and passage ─▶ the cache ─▶ a turn ─▶ the original ─▶ memory ─▶ a child draws

The cache is behind the access scope, so that a caller who may not read a document gets no picture of it.
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
from kb_contracts.api.formats import FORMATS, Format
from kb_contracts.api.operations import PictureQuery
from kb_contracts.semantics.documents import picture_of
from kb_engine.extract import DRAWN_HERE
from kb_engine.store.repository import documents, state
from kb_engine.store.store import Store
from kb_readers.failures import ExtractionFailed
from kb_readers.memory import MemoryBudget
from kb_readers.model import Limits, Page
from kb_readers.readers import check_drawn, draw_file

_AT_ONCE = 2
_MOST_REQUESTS = 16  # maximum number of requests that draw or wait; further ones are refused at once
_MOST_SECONDS = 20.0  # time for drawing a page, in seconds
_WHOLE_SECONDS = 25.0
"""Time for drawing a page with all waits, in seconds: less than the time-out of the server (30)."""
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
        self._requests = 0
        self._generation = 0
        self._cache: OrderedDict[_Wanted, m.Picture] = OrderedDict()

    async def get(self, key: int | str, query: PictureQuery) -> m.Picture:
        """Return the page of a document, with a chunk marked. Raises EngineError."""
        generation = await self._store.read(state.generation)
        if generation != self._generation:  # a document was changed, removed, or moved out of a scope
            self._cache.clear()
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
        if self._requests >= _MOST_REQUESTS:
            raise _busy()
        self._requests += 1
        try:
            async with asyncio.timeout(_WHOLE_SECONDS), self._turns:
                if wanted in self._cache:  # drawn for another request meanwhile
                    return self._cache[wanted]
                picture = await self._drawn(wanted, FORMATS[document.format or ""])
        except TimeoutError:
            raise _busy() from None
        finally:
            self._requests -= 1
        if generation == self._generation:
            self._keep(wanted, picture)
        return picture

    @property
    def count(self) -> int:
        """The number of pictures in the cache."""
        return len(self._cache)

    def _keep(self, wanted: _Wanted, picture: m.Picture) -> None:
        if not self._cache:
            asyncio.get_running_loop().call_later(_CACHE_SECONDS, self._cache.clear)
        self._cache[wanted] = picture
        while sum(len(each.content) for each in self._cache.values()) > _CACHE_BYTES:
            self._cache.popitem(last=False)

    async def _drawn(self, wanted: _Wanted, fmt: Format) -> m.Picture:
        try:
            check_drawn(fmt, DRAWN_HERE)  # before the file is copied
            with TemporaryFile() as file:
                async with aclosing(self._store.original(wanted.sha256)) as blocks:
                    async for block in blocks:
                        await asyncio.to_thread(file.write, block)
                await asyncio.to_thread(file.seek, 0)
                page = Page(wanted.page, wanted.text)
                drawn = await draw_file(file, fmt, page, self._limits, memory=self._memory, drawn=DRAWN_HERE)
        except ExtractionFailed as failed:
            raise EngineError(failed.code, failed.message) from failed
        return m.Picture(media_type=drawn.media_type, content=drawn.content)


def _busy() -> EngineError:
    return EngineError(
        "not_ready", "Too many pages are being drawn, or files read. Try again.", retry_after=5
    )
