"""Moving a document from one collection into another, which takes two changes of its tags.

A move removes the old tag before it adds the new one, each only if the document is unchanged, so that it ends
in exactly one collection despite concurrent changes. The command line uses this module too.

Assumptions: a document's `version` rises with every change of its tags, `If-Match` refuses another version,
and `tags` lists them in the order in which they were added. With an engine that orders them otherwise, only
the order of collections is lost.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from kb_contracts.api.models import MAX_TAGS, Document, TagsRequest
from kb_contracts.api.operations import ADD_TAGS, REMOVE_TAG, TagQuery
from kb_server.collection_tags import PREFIX, collections_in, split_tags, tag_of
from kb_server.engine_client.errors import EngineFault, Refused
from kb_server.engine_client.port import Engine, read_document
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

    First the old tag is removed, then the new one is added, each only if the document is unchanged; a changed
    document is read again, after a random pause of up to a second that keeps concurrent moves apart.
    Concurrent moves end in exactly one of their collections. A failed addition is retried, then the old tag
    is put back. Cancelling the caller does not stop it half-way.

    Raises:
        ToolError: `invalid_collection`; `move_failed` with the collection the document is in now.
        EngineFault: a refusal of the engine, such as `document_not_found`, or its failure to answer.
    """
    return await to_its_end(_Move(engine, tag_of(target), document.id, clock, jitter).run(document))


async def repair(engine: Engine, document_id: int, tags: Sequence[str], version: int) -> Document | None:
    """Remove a document from all collections but the one added last; None if nothing was to be done.

    `tags` are in the order of their addition. The repair is a side effect of another call: a failure is
    logged and does not fail the caller. A concurrent change wins, and the next reader repairs the document.
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
    """One move; every change is conditional on the version last seen."""

    engine: Engine
    target: str
    document_id: int
    clock: Clock
    jitter: Callable[[], float]
    came_from: str | None = None

    async def run(self, document: Document) -> Document:
        """Run the move; see `move`."""
        faults = 0
        for made in range(1, _ROUNDS + 1):
            try:
                return await self._once(document)
            except EngineFault as fault:
                # A conflict names a newer version; after silence or a broken connection the outcome is
                # unknown. In both cases the document is read again; in the second case only a few times.
                faults += 0 if _is_conflict(fault) else 1
                if faults > _FAULTS or _is_final(fault):
                    return await self._given_up(fault)
            if made < _ROUNDS:  # after the last round the document is only read
                pause = jittered(made, base=_PAUSE_SECONDS, cap=_LONGEST_PAUSE_SECONDS, random=self.jitter)
                await self.clock.sleep(pause)
            try:
                document = await self._read()
            except EngineFault as fault:
                return await self._given_up(fault)
        raise self._failure("concurrent changes of the document prevented the move.", document)

    async def _once(self, document: Document) -> Document:
        """Swap the tags; if the target cannot be added, put the old tag back."""
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

        A caller with a restricted access scope may not remove a document from its scope, not even between two
        requests: then the tag is swapped for the target in one request. The same is done if an earlier engine
        has let the document have more tags than allowed, because none could be added afterwards.
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
        """Return the document if it is in the target after all; otherwise put it back and raise."""
        if self.came_from is None or _is_final(fault):
            raise fault
        settled = await self._settled()
        if settled is None:
            fault.aftermath = "The document may be in no collection now; if so, try the move again."
            raise fault
        if self.target in settled.tags:
            return settled
        if self.came_from in settled.tags:
            raise fault
        raise self._failure(fault.detail, settled) from fault

    async def _settled(self) -> Document | None:
        """Return the document, put back if it is in no collection, or None if it cannot be read.

        The fault may have been a conflict or a lost answer, so the document is read before it is changed.
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
        return await read_document(self.engine, self.document_id)

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
