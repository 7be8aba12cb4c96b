"""A look at all of a base over days, a little at a time, while nobody wants anything of the engine.

    a minute ─▶ a slice is due, and nobody asks? ─▶ document after document ─▶ where it stopped, to the disk
                                                        │ somebody asks: wait for quiet
                                                        └ after the last one: the files of the index

What `kb check` compares is compared here: texts and kept files with their hashes, passages with the texts,
vectors by their length, and one passage of each document with what the model says now, unless the model is
paid for. What is hurt is named, and left as it is: a text cannot be made again, and a change that comes
meanwhile must not be lost. Only the index's own files, which are derived of what is compared, are made anew.
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

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 60.0
_SLICE_SECONDS, _MOST_SECONDS = 3_600.0, 86_400.0
"""A slice is what is due after an hour; where the engine was not idle or did not run, up to a day's."""
_LEAST_DOCUMENTS = 100
_BREATH_SECONDS = 0.1
_DAY_SECONDS = 86_400.0
_MOST_NAMED = 20
_CALLER = "scan"


class Position(msgspec.Struct, kw_only=True):
    """Where a scan is, kept between runs. Times are seconds since 1970; `after` is a document's number, 0
    where a round is over; `hurt` has what is wrong, by the number of the document."""

    begun: float = 0.0
    looked_at: float = 0.0
    after: int = 0
    hurt: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Pace:
    """A round of all documents takes so many days; nothing is done before `is_idle` says so."""

    days: float
    is_idle: Callable[[], bool]


class Scan:
    """Looks at the documents of a base, and remembers in a file at `place` where it is."""

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
        """Scan from now on, where the pace wants that."""
        if self._pace.days:
            self._task = asyncio.create_task(self._run(), name="scan")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def issues(self) -> list[str]:
        """What is hurt, as far as it has been found."""
        hurt = [
            f"Document {number} is hurt: {what}. Stop the engine and run kb check --repair"
            for number, what in self._position.hurt.items()
        ]
        if len(hurt) > _MOST_NAMED:
            hurt[_MOST_NAMED:] = [
                f"{len(hurt) - _MOST_NAMED} more documents are hurt; kb check --repair names them"
            ]
        if self._renewed:
            hurt.append(f"{self._renewed} files of the search index were damaged, and made anew")
        return hurt

    async def _run(self) -> None:
        self._position = await asyncio.to_thread(_read, self._place)
        while True:
            await self._pause(_LOOK_SECONDS)
            try:
                if self._is_due and self._pace.is_idle():
                    await self._slice()
            except EngineError as error:  # a database that is away is asked again
                logger.warning("the scan was broken off", extra={"code": error.code})
            except Exception:  # the boundary: a scan that fails must not be the end of all scans
                logger.exception("the scan was broken off")

    @property
    def _now(self) -> float:
        return self._clock().timestamp()

    @property
    def _is_due(self) -> bool:
        at = self._position
        has_work = at.after or at.hurt or self._now - at.begun >= self._pace.days * _DAY_SECONDS
        return bool(has_work) and self._now - at.looked_at >= _SLICE_SECONDS

    async def _slice(self) -> None:
        """What is due now; it ends early where the engine does."""
        at, now, before = self._position, self._now, self._position.looked_at
        at.looked_at = now  # also where it fails, so that it is not tried again every minute
        for number in list(at.hurt):  # it may have been mended, or removed
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
            await self._look_at_index()
            logger.info("all documents have been looked at", extra={"hurt": len(at.hurt)})

    async def _quiet(self) -> None:
        """Wait until nobody wants anything: searches come first."""
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
                logger.warning("a document is hurt", extra={"document": number, "what": what})
        elif known:
            logger.info("a document is whole again, or gone", extra={"document": number})

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
        """Whether the vector of one of its passages, another one each time, is not what the model says."""
        if self._encoder.embedder.device == "remote":
            return False
        place = random.randrange(len(document.chunks))  # noqa: S311 - nobody gains from guessing it
        chunk = document.chunks[place]
        with suppress(EngineError):  # without the model, which `/status` says
            await self._encoder.load()
            count = partial(self._encoder.embedder.count_tokens, chunk.text)  # in old bases it is not known
            chosen = [replace(chunk, tokens=await self._encoder.in_background(Owner(_CALLER), count))]
            (expected,) = await self._pipeline.embed(document.title, chosen, caller=_CALLER)
            return is_of_another(document.vectors[place], expected)
        return False

    async def _look_at_index(self) -> None:
        if renewed := await self._store.renew_damaged_index():
            self._renewed += renewed
            logger.warning("files of the search index were damaged, and made anew", extra={"files": renewed})


def _read(place: Path) -> Position:
    try:
        return msgspec.json.decode(place.read_bytes(), type=Position)
    except (OSError, msgspec.MsgspecError):  # there is none yet, or it was damaged: from the beginning
        return Position()


def _write(place: Path, position: Position) -> None:
    """Not synced: what is lost is looked at again."""
    new = place.with_name(place.name + ".new")
    try:
        new.write_bytes(msgspec.json.encode(position))
        new.replace(place)
    except OSError as error:
        logger.warning("where the scan is cannot be kept", extra={"error": str(error)})
