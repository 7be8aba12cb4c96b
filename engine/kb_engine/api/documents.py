"""`/documents`, `/notes` and `/tags`: reading, changing and removing what was taken in."""

from __future__ import annotations

import asyncio
import dataclasses
from uuid import uuid4

import msgspec

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.api.operations import NoQuery
from kb_contracts.http.mount import Incoming
from kb_contracts.semantics.documents import check_confirmed, check_patch, check_version, document_key
from kb_engine.api.engine import Engine
from kb_engine.api.idempotency import idempotency_of
from kb_engine.api.jobs import caller_of
from kb_engine.store.port import Idempotency


class DocumentsApi:
    """Handlers of the operations on documents, notes and tags."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._store = engine.store

    async def list_documents(self, incoming: Incoming) -> m.DocumentList:
        """One page of documents."""
        query = incoming.query
        return await self._store.documents(
            source_path=query.source_path,
            tag=query.tag,
            doc_type=query.doc_type,
            sort_by=query.sort_by,
            sort_order=query.sort_order,
            limit=query.limit,
            offset=query.offset,
        )

    async def get_document(self, incoming: Incoming) -> m.DocumentDetail:
        """One document with a slice of its chunks."""
        query = incoming.query
        return await self._store.document(
            document_key(incoming.path["document_id"]),
            chunk_offset=query.chunk_offset,
            chunk_limit=query.chunk_limit if query.chunks else 0,
        )

    async def delete_document(self, incoming: Incoming) -> m.Removed:
        """Remove one document."""
        return await self._store.delete(document_key(incoming.path["document_id"]), idempotency_of(incoming))

    async def clear_documents(self, incoming: Incoming) -> m.Removed:
        """Remove all documents, cancel the jobs accepted before, and stop the work on them."""
        check_confirmed(incoming.query.confirm)
        removed = await self._store.clear(idempotency_of(incoming), collections=incoming.query.collections)
        await self._engine.workers.cancel_void()
        self._engine.ends.announce_all()
        await self._engine.spool.sweep(self._store.spooled)
        return removed

    async def patch_note(self, incoming: Incoming) -> m.Document | m.Job:
        """Replace a note's text, title or both: the document when that is done in time, else its job."""
        patch: m.NotePatch = incoming.body
        check_patch(patch)
        deadline = asyncio.get_running_loop().time() + incoming.query.wait
        document_id, idempotency = incoming.path["document_id"], _update_key(incoming)
        taken = await self._store.accept_update(
            document_id,
            patch,
            idempotency,
            caller=caller_of(incoming),
            refusal=await self._embedder_failure(deadline),
        )
        if isinstance(taken, m.Document):
            return taken
        self._engine.workers.wake()
        left = max(0.0, deadline - asyncio.get_running_loop().time())
        job = await self._engine.ends.wait(taken.id, left, self._store.job)
        if job.error is not None:
            await self._refuse_as_now(document_id, patch.expected_version)
            raise EngineError(job.error.code, job.error.message)
        # Not as the note is now: a later update may have been quick.
        answer = await self._store.replayed(idempotency) if job.status == "completed" else None
        return job if answer is None else msgspec.json.decode(answer, type=m.Document)

    async def add_tags(self, incoming: Incoming) -> m.Document:
        """Add tags to a document."""
        key, request = document_key(incoming.path["document_id"]), incoming.body
        return await self._store.add_tags(key, request.tags, incoming.if_match, idempotency_of(incoming))

    async def remove_tag(self, incoming: Incoming) -> m.Document:
        """Take a tag off a document."""
        key, tag = document_key(incoming.path["document_id"]), incoming.path["tag"]
        return await self._store.remove_tag(key, tag, incoming.if_match, idempotency_of(incoming))

    async def list_tags(self, incoming: Incoming) -> m.TagList:
        """Tags with how much carries them."""
        query = incoming.query
        return await self._store.tags(query.prefix, query.limit, query.offset)

    async def _embedder_failure(self, deadline: float) -> EngineError | None:
        """Why the embedder takes nothing, so that the caller is refused now and not by a failed job.

        None also where that is not known in time, as while the model is loading.
        """
        try:
            async with asyncio.timeout_at(deadline):
                await self._engine.encoder.load()
        except TimeoutError:
            return None
        except EngineError as error:
            return error
        return None

    async def _refuse_as_now(self, document_id: int, expected_version: int | None) -> None:
        """Raise what the failed update would meet now, with all that belongs to such an error."""
        document, _ = await self._store.note(document_id)
        check_version(document, expected_version)


def _update_key(incoming: Incoming) -> Idempotency:
    """What the outcome of an update is kept under: the caller's key, else one that nobody else has.

    How long the caller waits does not make it another request.
    """
    key = incoming.idempotency_key or str(uuid4())
    idempotency = idempotency_of(dataclasses.replace(incoming, query=NoQuery(), idempotency_key=key))
    assert idempotency is not None  # it has a key
    return idempotency
