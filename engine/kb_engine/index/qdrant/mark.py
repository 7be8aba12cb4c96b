"""The mark: which generation the collection holds, and which engine may write to it.

It is a point of the collection itself, without vectors, so that it is lost with it and never without it.
What has been applied is marked after it was written: what a death leaves in between is written again.

Several engines on one base follow it each, and one of them writes at a time: it holds the mark. A mark is
changed by comparing and replacing (a conditional upsert), and counts its changes in `beat`. A holder whose
beat stands still for `LEASE` requests' time, by the clock of the engine that waits for it, is taken for dead.
One that was only paused finds out at its next beat, and then has the index made again: what it wrote since
may be older than what it replaced.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass, replace
from typing import Any
from uuid import uuid4

from qdrant_client import models as q

from kb_engine.index.port import IndexUnavailable
from kb_engine.index.qdrant.collection import Collection, NoCollection
from kb_engine.index.qdrant.points import equals

MARK_ID = 0
"""Chunks count from 1."""
BESIDES_THE_MARK = q.Filter(must_not=[q.HasIdCondition(has_id=[MARK_ID])])
LEASE = 2.0
"""In time-outs of a request: until then whatever its holder asked for has ended."""
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Mark:
    """What is in the point. `build` names the making of the collection; empty: there is none."""

    generation: int = 0
    build: str = ""
    dimensions: int = 0
    """Of the vectors; 0: there is no place for vectors, and no chunk."""
    reference: float = 0.0
    """The mean length, in words, of the texts that came first (`points.share`); 0: none came yet."""
    holder: str = ""
    beat: int = 0


class OvertakenWriter(IndexUnavailable):
    """Another engine has taken over meanwhile."""


class Marker:
    """Reads the mark, and changes it on behalf of one engine.

    Raises (all methods): `IndexUnavailable`.
    """

    def __init__(self, collection: Collection, timeout: float) -> None:
        self._collection = collection
        self._name = uuid4().hex
        self._lease_seconds = LEASE * timeout
        self._watched: tuple[str, int] = ("", 0)
        """A holder and its beat, ..."""
        self._since = 0.0
        """... and since when both are the same."""
        self._beaten = 0.0
        self._held: Mark | None = None

    async def read(self) -> Mark:
        """The mark; one of generation 0 without a build where there is no collection or none in it."""
        try:
            payload = await self._collection.payload(MARK_ID)
        except NoCollection:
            return Mark()
        return Mark() if payload is None else _mark(payload)

    async def take(self, known: Mark | None = None) -> Mark:
        """Wait until nobody else writes, and hold the mark, which was read just now where it is `known`.

        Raises:
            IndexUnavailable: there is no index.
        """
        while True:
            mark, known = known or await self.read(), None
            if not mark.build:
                raise IndexUnavailable("the search index is not there")
            if mark.holder in {"", self._name} or self._is_dead(mark):
                mine = replace(mark, holder=self._name, beat=mark.beat + 1)
                if await self._replace(mark, mine):
                    return mine
            await asyncio.sleep(_POLL_SECONDS)

    async def beat(self, mine: Mark) -> Mark:
        """Show that the holder lives, where it is time.

        Raises:
            OvertakenWriter: it was taken for dead.
        """
        if time.monotonic() - self._beaten < self._lease_seconds / 4:
            return mine
        return await self.change(mine)

    async def change(self, mine: Mark, **changes: Any) -> Mark:
        """Change the mark that is held.

        Raises:
            OvertakenWriter: it was taken over.
        """
        changed = replace(mine, beat=mine.beat + 1, **changes)
        if not await self._replace(mine, changed):
            raise OvertakenWriter("another engine has taken over the search index")
        return changed

    async def release(self) -> None:
        """Let others write; where the mark is not held (any more) that changes nothing."""
        held, self._held = self._held, None
        if held is not None:
            await self._put(held, replace(held, holder="", beat=held.beat + 1))

    async def begin(self, first: Mark) -> Mark:
        """The first mark of a collection that was made just now, held.

        Raises:
            OvertakenWriter: another engine has made one too, and its mark stands.
        """
        mine = replace(first, holder=self._name, beat=1)
        await self._collection.put([_point(mine)], q.UpdateMode.INSERT_ONLY)
        if await self.read() != mine:
            raise OvertakenWriter("another engine makes the search index")
        self._beaten, self._held = time.monotonic(), mine
        return mine

    async def _replace(self, old: Mark, new: Mark) -> bool:
        started = time.monotonic()
        await self._put(old, new)
        if await self.read() != new:
            self._held = None
            return False
        self._beaten, self._held = started, new
        return True

    async def _put(self, old: Mark, new: Mark) -> None:
        # Never into a collection that was made since: it may have no mark yet, or one that beats alike.
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
    try:
        return Mark(
            generation=int(payload["generation"]),
            build=str(payload["build"]),
            dimensions=int(payload["dimensions"]),
            reference=float(payload["reference"]),
            holder=str(payload["holder"]),
            beat=int(payload["beat"]),
        )
    except (KeyError, TypeError, ValueError):
        return Mark()  # not ours: made again
