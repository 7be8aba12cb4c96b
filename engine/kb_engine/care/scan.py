"""Consistency check of a whole database over days, in small slices while the engine is idle.

    once a minute ─▶ slice due and engine idle? ─▶ document after document ─▶ save the position
                                                        │ not idle: wait
                                                        └ after the last one: check the index files

The checks are those of `kb check`: texts and kept files against their hashes, passages against the texts, the
length of vectors, and one passage of each document against a fresh embedding, except with a paid endpoint.
Damage is reported and not repaired: a text cannot be derived again, and a concurrent change must not be lost.
Only the index files, which are derived data, are rebuilt.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec

from kb_contracts.api.errors import EngineError
from kb_engine.care.check import NO_WORDS, OTHER_VECTOR, faults_of, file_fault, is_of_another
from kb_engine.encoder import Encoder, Owner
from kb_engine.ingest.pipeline import Pipeline
from kb_engine.store.repository import content
from kb_engine.store.repository.content import Content
from kb_engine.store.store import Store, utc_now
from kb_engine.tasks import end

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 60.0
_SLICE_SECONDS, _MOST_SECONDS = 3_600.0, 86_400.0
"""A slice has the documents due in an hour; after the engine was busy or stopped, in up to a day."""
_LEAST_DOCUMENTS = 100
_BREATH_SECONDS = 0.1
_DAY_SECONDS = 86_400.0
_MOST_NAMED = 20
_CALLER = "scan"


class Position(msgspec.Struct, kw_only=True):
    """Position of the scan, kept between runs. Times are seconds since 1970; `after` is the number of the
    last document examined, or 0 after a complete round; `hurt` has the faults by document number."""

    begun: float = 0.0
    looked_at: float = 0.0
    after: int = 0
    hurt: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Pace:
    """`days` is the time for a round over all documents; the scan works only while `is_idle` returns True."""

    days: float
    is_idle: Callable[[], bool]


class Scan:
    """Scans the documents of a database; the position is kept in the file `place`."""

    def __init__(
        self,
        store: Store,
        encoder: Encoder,
        pipeline: Pipeline,
        place: Path,
        pace: Pace,
        *,
        clock: Callable[[], datetime] = utc_now,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._encoder = encoder
        self._pipeline = pipeline
        self._place = place
        self._pace = pace
        self._clock = clock
        self._pause = pause
        self._position = Position()
        self._renewed = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the scan, unless it is disabled (`days` is 0)."""
        if self._pace.days:
            self._task = asyncio.create_task(self._run(), name="scan")

    async def stop(self) -> None:
        await end(self._task)

    @property
    def issues(self) -> list[str]:
        """Damage found so far, as messages."""
        hurt = [
            f"Document {number} is damaged: {what}. Stop the engine and run kb check --repair"
            for number, what in self._position.hurt.items()
        ]
        if len(hurt) > _MOST_NAMED:
            hurt[_MOST_NAMED:] = [
                f"More damaged documents: {len(hurt) - _MOST_NAMED}. kb check --repair lists them"
            ]
        if self._renewed:
            hurt.append(f"Damaged files of the search index, rebuilt: {self._renewed}")
        return hurt

    async def _run(self) -> None:
        self._position = await asyncio.to_thread(_read, self._place)
        while True:
            await self._pause(_LOOK_SECONDS)
            try:
                if self._is_due and self._pace.is_idle():
                    await self._slice()
            except EngineError as error:  # for instance an unreachable database: try again later
                logger.warning("the scan was interrupted", extra={"code": error.code})
            except Exception:  # boundary: a failed slice must not end the scan
                logger.exception("the scan was interrupted")

    @property
    def _now(self) -> float:
        return self._clock().timestamp()

    @property
    def _is_due(self) -> bool:
        at = self._position
        has_work = at.after or at.hurt or self._now - at.begun >= self._pace.days * _DAY_SECONDS
        return bool(has_work) and self._now - at.looked_at >= _SLICE_SECONDS

    async def _slice(self) -> None:
        """Run a due slice; it is cancelled when the engine stops."""
        at, now, before = self._position, self._now, self._position.looked_at
        at.looked_at = now  # set before the work, so that a failing slice is not repeated each minute
        for number in list(at.hurt):  # may have been repaired or removed
            await self._look_at(int(number))
        if at.after or now - at.begun >= self._pace.days * _DAY_SECONDS:
            await self._go_on(now, now - before)
        await asyncio.to_thread(_write, self._place, at)

    async def _go_on(self, now: float, elapsed: float) -> None:
        at = self._position
        begins = not at.after
        total = await self._store.read(content.count)
        share = min(max(elapsed, _SLICE_SECONDS), _MOST_SECONDS) / (self._pace.days * _DAY_SECONDS)
        wanted = max(_LEAST_DOCUMENTS, math.ceil(total * share))
        numbers = await self._store.read(content.ids_after, at.after, wanted)
        for number in numbers:
            await self._look_at(number)
            at.after = number
        if begins:
            at.begun = now
        if len(numbers) < wanted:
            at.after = 0
            await self._quiet()
            if renewed := await self._store.renew_damaged_index():
                self._renewed += renewed
                logger.warning("rebuilt damaged files of the search index", extra={"files": renewed})
            logger.info("scan complete", extra={"hurt": len(at.hurt)})

    async def _quiet(self) -> None:
        """Wait until the engine is idle: searches come first."""
        await self._pause(_BREATH_SECONDS)
        while not self._pace.is_idle():
            await self._pause(_LOOK_SECONDS)

    async def _look_at(self, number: int) -> None:
        await self._quiet()
        what = ", ".join(await self._faults(number))
        known = self._position.hurt.pop(str(number), "")
        if what:
            self._position.hurt[str(number)] = what
            if what != known:
                logger.warning("a document is damaged", extra={"document": number, "what": what})
        elif known:
            logger.info("a damaged document was repaired or removed", extra={"document": number})

    async def _faults(self, number: int) -> list[str]:
        try:
            document = await self._store.read(content.content, number)
        except EngineError as error:
            if error.code != "internal":
                raise
            return ["it cannot be read"]
        if document is None:
            return []
        look = partial(faults_of, document, self._store.dimensions)
        faults = [fault.what for fault in await self._encoder.in_background(Owner(_CALLER), look)]
        if await self._store.read(content.lacks_words, number):
            faults.append(NO_WORDS.what)
        if (fault := await file_fault(self._store, number)) is not None:
            faults.append(fault.what)
        if not faults and document.chunks and await self._is_of_another(document):
            faults.append(OTHER_VECTOR.what)
        return faults

    async def _is_of_another(self, document: Content) -> bool:
        """True if the vector of a random passage differs from a fresh embedding."""
        if self._encoder.embedder.device == "remote":
            return False
        place = random.randrange(len(document.chunks))  # noqa: S311 - not a secret
        chunk = document.chunks[place]
        with suppress(EngineError):  # an outage of the model, which `/status` reports
            await self._encoder.load()
            count = partial(self._encoder.embedder.count_tokens, chunk.text)  # old databases lack the count
            chosen = [replace(chunk, tokens=await self._encoder.in_background(Owner(_CALLER), count))]
            (expected,) = await self._pipeline.embed(document.title, chosen, caller=_CALLER)
            return is_of_another(document.vectors[place], expected)
        return False


def _read(place: Path) -> Position:
    try:
        return msgspec.json.decode(place.read_bytes(), type=Position)
    except (OSError, msgspec.MsgspecError):  # missing or damaged: start from the beginning
        return Position()


def _write(place: Path, position: Position) -> None:
    """Write the position, without a sync: after a loss of power some documents are examined again."""
    new = place.with_name(place.name + ".new")
    try:
        new.write_bytes(msgspec.json.encode(position))
        new.replace(place)
    except OSError as error:
        logger.warning("the position of the scan cannot be saved", extra={"error": str(error)})
