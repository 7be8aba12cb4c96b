"""Moving a document from one collection into another, which takes two changes of its tags.

A move takes the old tag off before it puts the new one on, each only if the document is still as it was
seen, so that it ends in exactly one collection whatever else happens to it meanwhile. The command line goes
through this module too.

What is relied on: a document's `version` rises with every change of its tags, `If-Match` refuses another
version, and `tags` lists them in the order in which they were added. An engine that orders them
otherwise loses nothing but the say which of two collections is the younger one.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from kb_contracts.api.models import MAX_TAGS, Document, TagsRequest
from kb_contracts.api.operations import ADD_TAGS, GET_DOCUMENT, REMOVE_TAG, WITHOUT_CHUNKS, TagQuery
from kb_server.collection_tags import PREFIX, collections_in, split_tags, tag_of
from kb_server.engine_client.errors import EngineFault, Refused
from kb_server.engine_client.port import Engine
from kb_server.tool import ToolError
from kb_server.waiting import SYSTEM_CLOCK, Clock, jittered, to_its_end

logger = logging.getLogger(__name__)

_ROUNDS = 8
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.02, 1.0
_ATTEMPTS = 3
_FAULTS = 1


async def move(
    engine: Engine,
    document: Document,
    target: str,
    *,
    clock: Clock = SYSTEM_CLOCK,
    jitter: Callable[[], float] = random.random,
) -> Document:
    """Put a document into the collection `target` and into no other.

    First the old tag is removed, then the new one is added, each only if the document is still as it was
    seen; one that changed meanwhile is read again, after a pause of up to a second that keeps many moves at
    once out of one another's way. They end in exactly one of their collections. An add that fails is tried
    again, then the old tag is put back. A caller that leaves in the middle does not stop it half-way.

    Raises:
        ToolError: `invalid_collection`; `move_failed` with the collection the document is in now.
        EngineFault: what the engine refuses, such as `document_not_found`, or what keeps it from answering.
    """
    return await to_its_end(_Move(engine, tag_of(target), document.id, clock, jitter).run(document))


async def repair(engine: Engine, document_id: int, tags: Sequence[str], version: int) -> Document | None:
    """Take the document of these tags, as they were added, out of all collections but the last of them.

    None where nothing was to be done.

    For a caller that came for something else: a failure is logged and is not the caller's. Something else
    that changed the document meanwhile has the last word, and whoever sees it next repairs it.
    """
    repaired: Document | None = None
    try:
        for surplus in collections_in(tags)[:-1]:
            repaired = await engine.call(
                REMOVE_TAG, path={"document_id": document_id, "tag": surplus}, if_match=version
            )
            version = repaired.version
    except EngineFault as fault:
        logger.warning(
            "a document in several collections could not be repaired",
            extra={"document_id": document_id, "error": fault.code},
        )
    return repaired


@dataclass(slots=True)
class _Move:
    """One move; every change asks for the version last seen, so that none is made blindly."""

    engine: Engine
    target: str
    document_id: int
    clock: Clock
    jitter: Callable[[], float]
    came_from: str | None = None

    async def run(self, document: Document) -> Document:
        """As `move` has it."""
        faults = 0
        for made in range(1, _ROUNDS + 1):
            try:
                return await self._once(document)
            except EngineFault as fault:
                # A conflict names a newer version; after silence or a broken connection nobody knows what
                # was done. Both are answered by looking, the second not for ever.
                faults += 0 if _is_conflict(fault) else 1
                if faults > _FAULTS or _is_final(fault):
                    return await self._given_up(fault)
            if made < _ROUNDS:  # after the last round it is only looked at
                pause = jittered(made, base=_PAUSE_SECONDS, cap=_LONGEST_PAUSE_SECONDS, random=self.jitter)
                await self.clock.sleep(pause)
            try:
                document = await self._read()
            except EngineFault as fault:
                return await self._given_up(fault)
        raise self._failure("other changes of the document kept coming in between.", document)

    async def _once(self, document: Document) -> Document:
        """Swap the tags; where the target cannot be added for good, back where it came from."""
        for tag in collections_in(document.tags):
            if tag != self.target:
                self.came_from = tag
                document = await self._take_off(tag, document)
        if self.target in document.tags:
            return document
        fault: EngineFault | None = None
        for _ in range(_ATTEMPTS):
            try:
                return await self._add(self.target, document)
            except EngineFault as failed:
                if _is_conflict(failed):
                    raise
                fault = failed
        settled = await self._settled() or document
        if self.target in settled.tags:
            return settled
        raise self._failure(fault.detail if fault else "", settled)

    async def _take_off(self, tag: str, document: Document) -> Document:
        """Remove a tag.

        Whoever reaches a part of the base alone may not take a document out of it, not even between two
        requests: then the tag is swapped for the target in one. So it is where an earlier engine has let the
        document have more tags than it may, for none could be added afterwards.
        """
        swap = TagQuery(add=self.target)
        remove = partial(
            self.engine.call,
            REMOVE_TAG,
            path={"document_id": document.id, "tag": tag},
            if_match=document.version,
        )
        if len(document.tags) > MAX_TAGS:
            return await remove(query=swap)
        try:
            return await remove()
        except Refused as refusal:
            if refusal.reason != "forbidden":
                raise
        return await remove(query=swap)

    async def _given_up(self, fault: EngineFault) -> Document:
        """The document where it is in the target all the same; else an error, and never silently no home."""
        if self.came_from is None or _is_final(fault):
            raise fault
        settled = await self._settled()
        if settled is None:
            fault.aftermath = "The document may be in no collection now; then try the move again."
            raise fault
        if self.target in settled.tags:
            return settled
        if self.came_from in settled.tags:
            raise fault
        raise self._failure(fault.detail, settled) from fault

    async def _settled(self) -> Document | None:
        """The document, put back where it came from if it is in no collection; None if it cannot be read.

        The fault may have been a conflict or a lost answer, so that it is looked at before it is changed.
        """
        seen: Document | None = None
        for _ in range(_ATTEMPTS):
            try:
                seen = await self._read()
                if self.came_from is None or collections_in(seen.tags):
                    return seen
                return await self._add(self.came_from, seen)
            except EngineFault as fault:
                if _is_final(fault):
                    break
        return seen

    async def _add(self, tag: str, document: Document) -> Document:
        path, body = {"document_id": document.id}, TagsRequest(tags=[tag])
        return await self.engine.call(ADD_TAGS, path=path, body=body, if_match=document.version)

    async def _read(self) -> Document:
        path = {"document_id": self.document_id}
        return await self.engine.call(GET_DOCUMENT, path=path, query=WITHOUT_CHUNKS)

    def _failure(self, why: str, document: Document) -> ToolError:
        now_in = split_tags(document.tags).collection
        where = f"It is in `{now_in}`." if now_in else "It is in no collection now."
        return ToolError(
            "move_failed",
            f"Document {self.document_id} could not be moved to `{self.target.removeprefix(PREFIX)}`: {why} "
            f"{where} Try the move again.",
            document_id=self.document_id,
            collection=now_in,
        )


def _is_conflict(fault: EngineFault) -> bool:
    return isinstance(fault, Refused) and fault.reason in ("version_conflict", "tag_not_found")


def _is_final(fault: EngineFault) -> bool:
    return isinstance(fault, Refused) and not _is_conflict(fault)
