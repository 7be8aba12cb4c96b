"""Restoring versions of documents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from kb_contracts.access.reach import Reach
from kb_contracts.api import models as m
from kb_contracts.semantics.documents import check_version
from kb_contracts.semantics.sources import source_scope
from kb_simulator.determinism import rfc3339
from kb_simulator.engine.documents import Documents
from kb_simulator.engine.sources import holders
from kb_simulator.engine.stored import Stored

_OF_CONTENT = (
    "title", "doc_type", "format", "filename", "size_bytes", "sha256", "status", "status_reason",
    "extraction_method", "pages", "chunk_count", "original", "fidelity",
)  # fmt: skip


def restore(
    documents: Documents,
    key: int | str,
    version: int,
    expected: int | None,
    now: int,
    reach: Reach | None = None,
) -> Stored:
    """Give a document the content of a version, or bring back a removed document with it."""
    document_id = documents.number(key, now)
    past = documents.history.find(document_id, version, now).stored
    standing = documents.by_id.get(document_id)
    last = documents.history.last(document_id, now) if standing is None else standing.document.version
    check_version(last, expected)
    chunks = _again(documents, past, last + 1)
    was = documents.history.find(document_id, last, now).stored if standing is None else standing
    key_then = (past.dedup_key[0], past.dedup_key[1], was.dedup_key[2])
    new = replace(was, text=past.text, chunks=chunks, dedup_key=key_then, original=past.original)
    content = {name: getattr(past.document, name) for name in _OF_CONTENT}
    if standing is None:
        return _brought_back(documents, new, content, version, now, reach)
    if _stands(standing, past):
        return standing
    documents.history.keep(standing, now)
    return documents.change(standing, new, now, **content)


def _stands(standing: Stored, past: Stored) -> bool:
    """True if a document has the content of a version."""
    names = [name for name in _OF_CONTENT if name != "original"]
    is_same = all(getattr(standing.document, name) == getattr(past.document, name) for name in names)
    return is_same and [each.text for each in standing.chunks] == [each.text for each in past.chunks]


def _brought_back(
    documents: Documents,
    removed: Stored,
    content: dict[str, Any],
    version: int,
    now: int,
    reach: Reach | None,
) -> Stored:
    """Add a removed document again, without the sources that belong to another document by now."""
    scope = source_scope(removed.document.tags, removed.dedup_key[2])
    paths = [path for path in removed.document.source_paths if not holders(documents, path, scope, reach)]
    document = msgspec.structs.replace(
        removed.document,
        source_path=next(iter(paths), None),
        source_paths=paths,
        version=removed.document.version + 1,
        updated_at=rfc3339(now),
        **content,
    )
    back = replace(removed, document=document, updated=now, unsourced=removed.unsourced or not paths)
    documents.history.bring_back(document.id, version)
    documents.swap(None, back, now)
    return back


def _again(documents: Documents, past: Stored, version: int) -> tuple[m.Chunk, ...]:
    """Return the chunks of a version with new ids."""
    ids = documents.new_chunk_ids(len(past.chunks))
    return tuple(
        msgspec.structs.replace(
            chunk, id=ids[place], uid=documents.seeded.uuid("chunk", past.document.uid, version, place)
        )
        for place, chunk in enumerate(past.chunks)
    )
