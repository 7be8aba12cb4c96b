"""The effects of finished jobs on the documents: new documents, and new content of existing ones.

Times are passed in, in microseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from kb_contracts.api import models as m
from kb_contracts.semantics.documents import note_hash, tags_to_unite, text_digest, title_after_update
from kb_contracts.semantics.sources import Plan, plan, takes_over
from kb_readers.fidelity import fidelity_of
from kb_readers.model import Extraction
from kb_simulator.determinism import rfc3339
from kb_simulator.engine.documents import Documents
from kb_simulator.engine.index import passages, text_of
from kb_simulator.engine.sources import duplicate_of, holders_of
from kb_simulator.engine.stored import Stored
from kb_simulator.engine.submissions import Submission

NO_TEXT = "No text was found. A scan needs OCR, which the simulator does not do."


def take_in(
    documents: Documents, submission: Submission, content: Extraction, uid: str, now: int
) -> tuple[Stored, Plan]:
    """Store a submission and return its document and the plan for its source."""
    path = submission.source_path
    planned = plan(path, duplicate_of(documents, submission), holders_of(documents, submission))
    for document_id in planned.removed:
        documents.take_out(documents.by_id[document_id], now)
    for document_id in planned.detached:
        documents.detach(documents.by_id[document_id], path, now)
    if planned.target is None:
        return _added(documents, submission, content, uid, now), planned
    standing = documents.by_id[planned.target]
    if path is None and not standing.unsourced:
        standing = documents.by_id[planned.target] = replace(standing, unsourced=True)
    if not planned.swaps:
        return _united(documents, standing, submission, now), planned
    document = standing.document
    documents.history.keep(standing, now)
    text, chunks = _chunks(documents, content, document.uid, document.version + 1)
    changed = documents.change(
        standing,
        replace(
            standing, text=text, chunks=chunks, dedup_key=submission.dedup_key, original=submission.original
        ),
        now,
        **_described(submission, content, chunks),
        tags=[*document.tags, *tags_to_unite(document.tags, submission.tags)],
        metadata=dict(submission.metadata or document.metadata),
    )
    return changed, planned


def _added(documents: Documents, submission: Submission, content: Extraction, uid: str, now: int) -> Stored:
    path = submission.source_path
    document_id = documents.new_id()
    text, chunks = _chunks(documents, content, uid, version=1)
    document = m.Document(
        id=document_id,
        uid=uid,
        source_path=path,
        source_paths=[] if path is None else [path],
        tags=list(submission.tags),
        metadata=dict(submission.metadata or {}),
        version=1,
        created_at=rfc3339(now),
        updated_at=rfc3339(now),
        **_described(submission, content, chunks),
    )
    stored = Stored(document, text, chunks, submission.dedup_key, now, now, path is None, submission.original)
    documents.swap(None, stored, now)
    return stored


def _united(documents: Documents, stored: Stored, submission: Submission, now: int) -> Stored:
    """Return the existing document with the tags, the path and the file of its duplicate added."""
    if submission.original is not None and stored.original is None:
        document = msgspec.structs.replace(stored.document, original=True)
        stored = replace(stored, document=document, original=submission.original)
        documents.by_id[document.id] = stored
    tags = [*stored.document.tags, *tags_to_unite(stored.document.tags, submission.tags)]
    paths = list(stored.document.source_paths)
    if submission.source_path is not None and submission.source_path not in paths:
        if takes_over(submission.kind, paths):
            stored = documents.by_id[stored.document.id] = replace(stored, unsourced=False)
        paths.append(submission.source_path)
    if tags == stored.document.tags and paths == stored.document.source_paths:
        return stored
    return documents.change(
        stored, stored, now, tags=tags, source_path=paths[0] if paths else None, source_paths=paths
    )


def replace_note(documents: Documents, document_id: int, patch: m.NotePatch, now: int) -> Stored:
    """Return the note with its text or title replaced, or unchanged if they are equal."""
    stored, text = documents.note(document_id, patch.expected_version), patch.text
    new_text = stored.text if text is None else text
    new_title = patch.title or title_after_update(stored.document.title, stored.text, new_text)
    digest, size = text_digest(new_text)
    if (digest, new_title) == (stored.document.sha256, stored.document.title):
        return stored
    content = Extraction.of_note(new_text)
    _, chunks = _chunks(documents, content, stored.document.uid, stored.document.version + 1)
    key = (stored.dedup_key[0], note_hash(new_text), stored.dedup_key[2])
    documents.history.keep(stored, now)
    new = replace(stored, text=new_text, chunks=chunks, dedup_key=key)
    return documents.change(
        stored, new, now, title=new_title, size_bytes=size, sha256=digest, **_status(chunks)
    )


def _described(submission: Submission, content: Extraction, chunks: Sequence[m.Chunk]) -> dict[str, Any]:
    """Members of a document that describe its content."""
    return {
        "title": submission.document_title,
        "doc_type": submission.doc_type,
        "format": submission.format,
        "filename": submission.filename,
        "size_bytes": submission.size_bytes,
        "sha256": submission.sha256,
        "extraction_method": content.method,
        "pages": content.page_count,
        "original": msgspec.UNSET if submission.original is None else True,
        "fidelity": msgspec.UNSET if content.is_note else fidelity_of(content),
        **_status(chunks, content.remark),
    }


def _status(chunks: Sequence[m.Chunk], remark: str | None = None) -> dict[str, Any]:
    """Members of a document that describe its chunks."""
    return {
        "chunk_count": len(chunks),
        "status": "searchable" if chunks else "empty",
        "status_reason": remark or (None if chunks else NO_TEXT),
    }


def _chunks(
    documents: Documents, content: Extraction, uid: str, version: int
) -> tuple[str, tuple[m.Chunk, ...]]:
    found = passages(content.pages, headings=content.is_markdown)
    ids = documents.new_chunk_ids(len(found))
    chunks = tuple(
        m.Chunk(
            id=ids[place],
            uid=documents.seeded.uuid("chunk", uid, version, place),
            index=place,
            text=passage.text,
            page=passage.page,
            heading=passage.heading,
            start=passage.start,
            end=passage.end,
            table_header=passage.table_header or msgspec.UNSET,
        )
        for place, passage in enumerate(found)
    )
    return text_of(content.pages), chunks
