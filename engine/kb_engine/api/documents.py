"""`/documents`, `/notes` and `/tags`: reading, changing and removing what was taken in."""

from __future__ import annotations

import msgspec

from kb_contracts import models as m
from kb_contracts.errors import EngineError
from kb_contracts.mount import Incoming
from kb_engine.api.engine import Engine
from kb_engine.api.idempotency import idempotency_of
from kb_engine.api.jobs import check_text
from kb_engine.ingest import title_of
from kb_engine.store.port import Idempotency

_ATTEMPTS = 3


class DocumentsApi:
    """Handlers of the operations on documents, notes and tags."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._store = engine.store

    async def list(self, incoming: Incoming) -> m.DocumentList:
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

    async def get(self, incoming: Incoming) -> m.DocumentDetail:
        """One document with a slice of its chunks."""
        query = incoming.query
        return await self._store.document(
            document_key(incoming),
            chunk_offset=query.chunk_offset,
            chunk_limit=query.chunk_limit if query.chunks else 0,
        )

    async def delete(self, incoming: Incoming) -> m.Removed:
        """Remove one document."""
        key = document_key(incoming)
        with self._engine.keys.hold(incoming):
            return await self._store.delete(key, idempotency_of(incoming))

    async def clear(self, incoming: Incoming) -> m.Removed:
        """Remove all documents, cancel the jobs accepted before, and stop the work on them."""
        if not incoming.query.confirm:
            raise EngineError(
                "confirmation_required",
                "This removes every document. Send confirm=true to do it.",
                parameter="confirm",
            )
        with self._engine.keys.hold(incoming):
            removed = await self._store.clear(
                idempotency_of(incoming), collections=incoming.query.collections
            )
            await self._engine.workers.cancel_void()
        self._engine.ends.announce_all()
        await self._engine.spool.sweep(self._store.spooled)
        return removed

    async def patch_note(self, incoming: Incoming) -> m.Document:
        """Replace a note's text, title or both."""
        patch: m.NotePatch = incoming.body
        if patch.text is None and patch.title is None:
            raise EngineError("missing_parameter", "Send text, title or both.", parameter="text")
        if patch.text is not None:
            check_text(patch.text)
        idempotency = idempotency_of(incoming)
        with self._engine.keys.hold(incoming):
            if (answer := await self._answered(idempotency)) is not None:
                return answer
            return await self._replace_current(incoming.path["document_id"], patch, idempotency)

    async def add_tags(self, incoming: Incoming) -> m.Document:
        """Add tags to a document."""
        key, request = document_key(incoming), incoming.body
        with self._engine.keys.hold(incoming):
            return await self._store.add_tags(key, request.tags, incoming.if_match, idempotency_of(incoming))

    async def remove_tag(self, incoming: Incoming) -> m.Document:
        """Take a tag off a document."""
        key, tag = document_key(incoming), incoming.path["tag"]
        with self._engine.keys.hold(incoming):
            return await self._store.remove_tag(key, tag, incoming.if_match, idempotency_of(incoming))

    async def list_tags(self, incoming: Incoming) -> m.TagList:
        """Tags with how much carries them."""
        query = incoming.query
        return await self._store.tags(query.prefix, query.limit, query.offset)

    async def _answered(self, idempotency: Idempotency | None) -> m.Document | None:
        # A retry must not embed again, nor meet the version that its first try has raised.
        if idempotency is None or (answer := await self._store.replayed(idempotency)) is None:
            return None
        return msgspec.json.decode(answer, type=m.Document)

    async def _replace_current(
        self, document_id: int, patch: m.NotePatch, idempotency: Idempotency | None
    ) -> m.Document:
        # Who names no version means the current one: a change that came in between is no conflict to tell.
        for _ in range(_ATTEMPTS - 1):
            try:
                return await self._replace(document_id, patch, idempotency)
            except EngineError as error:
                if error.code != "version_conflict" or patch.expected_version is not None:
                    raise
        return await self._replace(document_id, patch, idempotency)

    async def _replace(
        self, document_id: int, patch: m.NotePatch, idempotency: Idempotency | None
    ) -> m.Document:
        document, old_text = await self._store.note(document_id)
        if patch.expected_version is not None and patch.expected_version != document.version:
            raise EngineError(
                "version_conflict",
                f"The note has version {document.version}, not {patch.expected_version}; read it again.",
                current_version=document.version,
            )
        text = old_text if patch.text is None else patch.text
        title = patch.title or _title_after(document.title, old_text, text)
        return await self._store.replace_note(
            document_id,
            text=text,
            title=title,
            prepared=await self._engine.pipeline.note(text, title),
            version=document.version,
            idempotency=idempotency,
        )


def document_key(incoming: Incoming) -> int | str:
    """The number or uid in the path.

    Raises:
        EngineError: `document_not_found` for a number beyond any document's.
    """
    key: str = incoming.path["document_id"]
    if not key.isdecimal():
        return key
    if (number := int(key)) > m.MAX_INTEGER:
        raise EngineError("document_not_found", f"There is no document {key}.")
    return number


def _title_after(title: str, old_text: str, text: str) -> str:
    # A title that was taken from the old text goes with it; one that was given stays.
    return title_of(text) if title == title_of(old_text) else title
