"""The mark: the generation of the collection, and its write lock.

It is a point of the collection itself, without vectors, so that it exists exactly as long as the collection.
A generation is marked after its changes were written: after a crash in between they are written again.

Several engines follow one base, but only one writes at a time: the holder of the mark. A mark is changed by
compare-and-swap (a conditional upsert), and counts its changes in `beat`. A holder whose beat does not change
for `LEASE` request time-outs, by the clock of the waiting engine, counts as dead. If it was only paused, it
notices at its next heartbeat, and has the index rebuilt: points that it wrote meanwhile may be older than the
points that they replaced.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from uuid import uuid4

import msgspec
from qdrant_client import models as q

from kb_engine.index.port import IndexUnavailable
from kb_engine.index.qdrant.collection import Collection, NoCollection
from kb_engine.index.qdrant.points import equals
from kb_engine.index.words import ANALYSER

MARK_ID = 0  # chunk ids begin at 1
BESIDES_THE_MARK = q.Filter(must_not=[q.HasIdCondition(has_id=[MARK_ID])])
LEASE = 2.0
"""Lifetime of a lock without heartbeat, in request time-outs: by then all requests of the holder
have ended.
"""
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Mark:
    """The payload of the mark. `build` identifies the build of the collection; empty if there is no
    collection.
    """

    generation: int = 0
    build: str = ""
    dimensions: int = 0  # dimensions of the vectors; 0: the collection cannot hold vectors, and has no chunks
    reference: float = field(default=0.0, compare=False)
    """Mean length, in words, of the first texts (`points.share`); 0: the collection had no texts yet.

    Marks are compared without it: Qdrant may change the last bit of a number that it reads from JSON.
    """
    holder: str = ""
    beat: int = 0
    analyser: str = ANALYSER  # the analyser of the words; an index of an earlier one is made anew


class OvertakenWriter(IndexUnavailable):
    """Another engine has taken over the mark."""


class Marker:
    """Reads the mark, and changes it on behalf of one engine.

    Raises (all methods): `IndexUnavailable`.
    """

    def __init__(self, collection: Collection, timeout: float) -> None:
        self._collection = collection
        self._name = uuid4().hex
        self._lease_seconds = LEASE * timeout
        self._watched: tuple[str, int] = ("", 0)  # the holder and beat last seen by a waiting engine
        self._since = 0.0  # time since which these are unchanged
        self._beaten = 0.0
        self._held: Mark | None = None

    async def read(self) -> Mark:
        """Return the mark. Without a collection or a mark in it, return one of generation 0
        without a build.
        """
        try:
            payload = await self._collection.payload(MARK_ID)
        except NoCollection:
            return Mark()
        return Mark() if payload is None else _mark(payload)

    async def take(self, known: Mark | None = None) -> Mark:
        """Wait until the mark is free, and take it. `known` is a mark that was just read.
        Raises IndexUnavailable: there is no index.
        """
        while True:
            mark, known = known or await self.read(), None
            if not mark.build:
                raise IndexUnavailable("the search index is not there")
            if mark.holder in {"", self._name} or self._is_dead(mark):
                mine = replace(mark, holder=self._name, beat=mark.beat + 1)
                if written := await self._replace(mark, mine):
                    return written
            await asyncio.sleep(_POLL_SECONDS)

    async def beat(self, mine: Mark) -> Mark:
        """Send a heartbeat, if one is due. Raises OvertakenWriter: another engine took this one for dead."""
        if time.monotonic() - self._beaten < self._lease_seconds / 4:
            return mine
        return await self.change(mine)

    async def change(self, mine: Mark, **changes: Any) -> Mark:
        """Change the mark, which must be held. Raises OvertakenWriter: another engine has taken it over."""
        written = await self._replace(mine, replace(mine, beat=mine.beat + 1, **changes))
        if not written:
            raise OvertakenWriter("another engine has taken over the search index")
        return written

    async def release(self) -> None:
        """Release the mark, if it is (still) held."""
        held, self._held = self._held, None
        if held is not None:
            await self._put(held, replace(held, holder="", beat=held.beat + 1))

    async def begin(self, first: Mark) -> Mark:
        """Write the first mark of a newly created collection, and hold it.
        Raises OvertakenWriter: another engine created a collection too, and its mark was first.
        """
        mine = replace(first, holder=self._name, beat=1)
        await self._collection.put([_point(mine)], q.UpdateMode.INSERT_ONLY)
        if await self.read() != mine:
            raise OvertakenWriter("another engine makes the search index")
        self._beaten, self._held = time.monotonic(), mine
        return mine

    async def _replace(self, old: Mark, new: Mark) -> Mark | None:
        """Return the mark as Qdrant has it now; None if another engine has changed it."""
        started = time.monotonic()
        await self._put(old, new)
        written = await self.read()
        self._held = written if written == new else None
        if self._held is not None:
            self._beaten = started
        return self._held

    async def _put(self, old: Mark, new: Mark) -> None:
        # The filter excludes a collection created since: it may have no mark yet, or one with the same beat.
        unchanged = q.Filter(must=[equals("build", old.build), equals("beat", old.beat)])
        await self._collection.put([_point(new)], q.UpdateMode.UPDATE_ONLY, where=unchanged)

    def _is_dead(self, mark: Mark) -> bool:
        now = time.monotonic()
        if (mark.holder, mark.beat) != self._watched:
            self._watched, self._since = (mark.holder, mark.beat), now
        return now - self._since > self._lease_seconds


def _point(mark: Mark) -> q.PointStruct:
    return q.PointStruct(id=MARK_ID, vector={}, payload=asdict(mark))


def _mark(payload: q.Payload) -> Mark:
    given = {"analyser": "", **payload}  # marks of the first version name no analyser
    try:
        return msgspec.convert({name: given[name] for name in asdict(Mark())}, Mark)
    except (KeyError, msgspec.ValidationError):
        return Mark()  # an incomplete or invalid mark: the index is rebuilt
