"""Documents stored with their identity: imported from another base, or restored from a version."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kb_contracts.api import models as m
from kb_contracts.semantics.documents import check_version
from kb_contracts.semantics.sources import source_scope
from kb_engine.store.clock import stamp
from kb_engine.store.port import Arrival, NewJob, Prepared
from kb_engine.store.repository import documents, originals, sources, versions
from kb_engine.store.repository.content import assign, describe, passages
from kb_engine.store.repository.transaction import Read, Write
from kb_engine.store.repository.versions import Members, Past

_OF_JOB = ("title", "tags", "metadata", "sha256", "size_bytes", "filename", "format", "doc_type")
_OF_CONTENT = ("sha256", "title", "doc_type", "format", "filename", "extraction_method")


class VectorsMissing(Exception):
    """The passages of `past` must be embedded before it can be restored."""

    def __init__(self, past: Past) -> None:
        super().__init__(f"version {past.version} of document {past.document_id} has no vectors")
        self.past = past


async def arrive(
    write: Write,
    arrival: Arrival,
    prepared: Prepared,
    spool: str | None = None,
    *,
    of_the_same: Container[str] = (),
) -> bool:
    """Insert a document of another base with its uid, version and times, and keep its file `spool`.

    Return False, with nothing done, if its uid or content already exists here or its source belongs to
    another document. `of_the_same` has the uids of the other base: after updates and moves two of its
    documents may have equal content or a common source, and keep them here.
    """
    await write.hold_base()
    if await documents.has(write, arrival.uid):
        return False
    scope = source_scope(arrival.tags, "")
    job = NewJob(
        id=arrival.uid,
        kind="note" if arrival.text is not None else "file",
        source_path=next(iter(arrival.source_paths), None),
        dedup_scope=scope,
        text=arrival.text,
        spool=spool,
        **_copied(arrival),
    )
    for path in arrival.source_paths or (None,):
        for number in (await sources.hold_plan(write, replace(job, source_path=path))).documents:
            if (await documents.find(write, number)).uid not in of_the_same:
                return False
    document_id = (await documents.insert(write, job, prepared)).id
    for path in arrival.source_paths[1:]:
        await sources.point(write, path, document_id)
    kept = {
        "uid": arrival.uid,
        "version": arrival.version,
        "created_at": stamp(datetime.fromisoformat(arrival.created_at)),
        "updated_at": stamp(datetime.fromisoformat(arrival.updated_at)),
    }
    await assign(write, document_id, kept)
    await originals.keep(write, job)
    return True


async def restore(
    write: Write,
    key: int | str,
    version: int,
    if_match: int | None,
    vectors: NDArray[np.float32] | None = None,
) -> m.Document:
    """Give a document the content of a version, or restore a removed document with it.

    An existing document keeps its tags, metadata and sources; a document that already has this content is
    unchanged. A removed document gets back its id, uid, tags, metadata and sources, except sources that point
    to another document by now.

    Raises:
        VectorsMissing: a different embedder has filled the base since, and `vectors` is None.
        EngineError: `document_not_found`, `version_not_found` or `version_conflict`.
    """
    await write.hold_base()
    past = await versions.find(write, key, version)
    await write.hold_content("version", past.uid, "")
    past = await versions.find(write, key, version)  # read again under the lock
    if not await documents.has(write, past.uid):
        check_version(await versions.last(write, past.document_id), if_match)
        return await _bring_back(write, past, _prepared(past, vectors))
    standing = await documents.hold_version(write, past.document_id, if_match)
    if await _stands(write, standing, past):
        return standing
    prepared = _prepared(past, vectors)
    scope = await write.value("SELECT dedup_scope FROM documents WHERE id = ?", (standing.id,))
    await documents.replace_content(write, standing.id, prepared)
    job = replace(_job(past), dedup_scope=scope)
    await describe(write, standing.id, job, prepared, standing.metadata)
    await originals.release(write, [standing.sha256])
    await documents.raise_version(write, standing.id)
    return await documents.find(write, standing.id)


async def _stands(read: Read, standing: m.Document, past: Past) -> bool:
    """True if a document has the content of a version; for a file, also the same extracted passages."""
    if any(getattr(standing, name) != getattr(past.members, name) for name in _OF_CONTENT):
        return False
    return past.members.kind == "note" or await passages(read, standing.id) == [
        each.text for each in past.chunks
    ]


async def _bring_back(write: Write, past: Past, prepared: Prepared) -> m.Document:
    number = await versions.last(write, past.document_id)
    was = (await versions.find(write, past.document_id, number)).members  # at its removal
    job = replace(_job(past), tags=was.tags, metadata=was.metadata, dedup_scope=was.dedup_scope)
    paths = []
    for path in was.source_paths:
        await write.hold_content("source", path, source_scope(was.tags, was.dedup_scope))
        if not await sources.holders(write, path, job):
            paths.append(path)
    first = replace(job, source_path=next(iter(paths), None))
    await documents.insert(write, first, prepared, past.document_id)
    for path in paths[1:]:
        await sources.point(write, path, past.document_id)
    kept = {
        "uid": past.uid,
        "version": number,
        "created_at": was.created_at,
        "unsourced": was.unsourced or not paths,
    }
    await assign(write, past.document_id, kept)
    await versions.brought_back(write, past)
    await documents.raise_version(write, past.document_id)
    return await documents.find(write, past.document_id)


def _prepared(past: Past, vectors: NDArray[np.float32] | None) -> Prepared:
    found = past.vectors if vectors is None else vectors
    if found is None:
        raise VectorsMissing(past)
    return past.prepared(found)


def _job(past: Past) -> NewJob:
    """Return a job that would have created the content of this version."""
    was = past.members
    return NewJob(
        id=past.uid,
        kind=was.kind,
        source_path=None,
        dedup_scope=was.dedup_scope,
        text=past.text if was.kind == "note" else None,
        **_copied(was),
    )


def _copied(source: Arrival | Members) -> dict[str, Any]:
    return {name: getattr(source, name) for name in _OF_JOB}
