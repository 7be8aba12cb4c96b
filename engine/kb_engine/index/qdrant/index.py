"""The index in Qdrant, as the engine calls it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import uuid4

from qdrant_client import models as q

from kb_engine.index import port
from kb_engine.index.qdrant.collection import Collection, client_for
from kb_engine.index.qdrant.mark import BESIDES_THE_MARK, Mark, Marker, OvertakenWriter
from kb_engine.index.qdrant.points import among, batches, equals, mean_length, points_of, terms_of
from kb_engine.index.qdrant.qdrant_settings import QdrantSettings
from kb_engine.index.qdrant.querying import Searcher
from kb_engine.index.words import ANALYSER

if TYPE_CHECKING:
    from kb_engine.settings import EngineSettings

REQUEST_BYTES = 4 * 1024 * 1024  # approximate size of a write request in bytes; a server accepts 32 MiB
IDS_AT_ONCE = 10_000


class QdrantIndex:
    """An `Index` in a collection of Qdrant, which several engines may share.

    An update adds the new chunks of a document before it removes the old ones. In between a search may find
    both; the store leaves out deleted chunks.
    """

    def __init__(self, settings: QdrantSettings) -> None:
        self._collection = Collection(client_for(settings), settings)
        self._marker = Marker(self._collection, settings.timeout)
        self._searcher = Searcher(self._collection, settings.exact_up_to)
        self._building: str | None = None
        """Id of the build of the collection that this engine has begun and not finished."""
        self._last_read: Mark | None = None  # the mark read by the last call of `generation`

    async def generation(self) -> int:
        self._last_read = await self._marker.read()
        return self._last_read.generation if self._last_read.analyser == ANALYSER else 0

    async def apply(self, changes: port.Changes, generation: int) -> None:
        # A follower has just read the mark; it is read again if it has changed since.
        last_read, self._last_read = self._last_read, None
        mark = await self._marker.take(last_read if last_read and last_read.build else None)
        if not await self._may_write(mark):
            raise port.IndexUnavailable("another engine makes the search index")
        if generation < mark.generation:
            await self._marker.release()
            return
        try:
            mark = await self._write(changes, mark)
            mark = await self._marker.change(mark, generation=generation)
        except OvertakenWriter:
            # Points written since may be older than the points that they replaced, and only this engine knows
            # which.
            await self._collection.drop()
            raise
        if generation:
            self._building = None
            await self._marker.release()

    async def search(self, query: port.IndexQuery) -> port.Candidates:
        mark = await self._marker.read()
        if not mark.build:
            return port.Candidates((), 0, exact=False, total_exact=False)
        return await self._searcher.search(query, mark)

    async def create(self, dimensions: int) -> None:
        mark = await self._marker.read()
        if mark.build:
            mark = await self._marker.take(mark)
        if self._last_read is not None and (self._last_read.build, self._last_read.generation) != (
            mark.build,
            mark.generation,
        ):
            await self._marker.release()
            raise port.IndexUnavailable("another engine has made the search index meanwhile")
        self._building = uuid4().hex
        await self._make(dimensions, self._building)

    async def drop(self) -> None:
        await self._collection.drop()

    async def stats(self) -> port.IndexStats:
        mark = await self._marker.read()
        if not mark.build:
            return port.IndexStats(0, 0, 0)
        documents, chunks = await asyncio.gather(
            self._collection.count(q.Filter(must=[equals("position", 0)])),
            self._collection.count(BESIDES_THE_MARK),
        )
        return port.IndexStats(documents, chunks, mark.generation)

    async def close(self) -> None:
        with suppress(port.IndexUnavailable):  # otherwise it is taken for dead, which delays the next writer
            await self._marker.release()
        await self._collection.close()

    async def _may_write(self, mark: Mark) -> bool:
        """True if the collection is this engine's own build, or complete while this engine builds none."""
        building, finished = self._building, mark.generation > 0
        if building == mark.build or (building is None and finished):
            return True
        self._building = None
        await self._marker.release()
        return False

    async def _make(self, dimensions: int, build: str, generation: int = 0) -> Mark:
        await self._collection.make(dimensions)
        self._last_read = None
        return await self._marker.begin(Mark(generation=generation, build=build, dimensions=dimensions))

    async def _write(self, changes: port.Changes, mark: Mark) -> Mark:
        if changes.cleared:
            await self._collection.remove(BESIDES_THE_MARK)
        upserts = [one for one in changes.upserts if len(one.chunk_ids)]
        if upserts:
            mark = await self._fitting(mark, upserts[0].vectors.shape[1])
            mark = await self._put(upserts, mark)
        new = [chunk_id for one in upserts for chunk_id in one.chunk_ids]
        touched = [*changes.deletes, *(one.id for one in changes.upserts)]
        for start in range(0, len(touched), IDS_AT_ONCE):
            mark = await self._marker.beat(mark)
            those = among("document", touched[start : start + IDS_AT_ONCE])
            await self._collection.remove(q.Filter(must=[those], must_not=[q.HasIdCondition(has_id=[*new])]))
        return mark

    async def _put(self, documents: Sequence[port.IndexedDocument], mark: Mark) -> Mark:
        terms = await asyncio.to_thread(terms_of, documents)
        if not mark.reference:
            mark = await self._marker.change(mark, reference=mean_length(terms.values()))
        points = batches(points_of(documents, terms, mark.reference), REQUEST_BYTES)
        while batch := await asyncio.to_thread(next, points, None):
            mark = await self._marker.beat(mark)
            await self._collection.put(batch)
        return mark

    async def _fitting(self, mark: Mark, dimensions: int) -> Mark:
        """Return the mark of a collection that accepts these vectors, recreating an empty one."""
        if mark.dimensions == dimensions:
            return mark
        if mark.dimensions:
            await self._collection.drop()
            raise port.IndexUnavailable(
                f"the search index was made for vectors of {mark.dimensions} numbers, and these have "
                f"{dimensions}; it is made again"
            )
        # These are the first vectors: the collection has no chunk to lose.
        return await self._make(dimensions, mark.build, mark.generation)


def index_from(settings: EngineSettings) -> QdrantIndex:
    """Return the index of the settings. Makes no request yet."""
    return QdrantIndex(settings.of(QdrantSettings))
