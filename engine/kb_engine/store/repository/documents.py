"""Documents and their tags: found, listed, created by the commit of a job, changed and removed.

The commit of a job creates a document, finds an existing duplicate, or replaces the text of a note, and
closes the job in the same transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import msgspec

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.api.operations import DocumentsQuery
from kb_contracts.semantics import documents as rules
from kb_contracts.semantics.access import check_changes, check_stays, check_whole
from kb_contracts.semantics.search import GONE, checked, find_quote
from kb_contracts.semantics.sources import left_out, scope_after_removal, scope_after_tags, source_not_found
from kb_engine.store.clock import following
from kb_engine.store.port import JobProgress, LeasedJob, NewJob, Prepared
from kb_engine.store.repository import content, jobs, originals, sources, versions
from kb_engine.store.repository.reach import starts_with
from kb_engine.store.repository.search import CHUNK_COLUMNS, chunk
from kb_engine.store.repository.transaction import Read, Write, makes_room, settle, together

_DERIVED = ("source_paths", "tags", "original")
_COLUMNS = tuple(name for name in m.Document.__struct_fields__ if name not in _DERIVED)
"""The members of a document that are columns of `documents`."""


# read


async def _rows(
    read: Read, condition: str, values: Sequence[Any], order: str = "", page: Sequence[int] = ()
) -> list[dict[str, Any]]:
    """Return the fields of the documents `d` within the access scope, by name."""
    kept = f"{originals.IS_KEPT} AS original"
    columns = ", ".join([*(f"d.{name}" for name in _COLUMNS), read.sources, read.tags, kept])
    within, reached = read.within("d.id")
    documents = []
    sql = f"SELECT {columns} FROM documents d WHERE {condition}{within}{order}"  # noqa: S608
    for row in await read.rows(sql, (*values, *reached, *page)):
        fields = dict(zip((*_COLUMNS, *_DERIVED), row, strict=True))
        fields["original"] = True if fields["original"] else msgspec.UNSET
        fields["fidelity"] = content.fidelity_in(fields["fidelity"]) or msgspec.UNSET
        fields["metadata"] = msgspec.json.decode(fields["metadata"])
        for name in ("source_paths", "tags"):
            fields[name] = read.read_list(fields[name])
        documents.append(fields)
    return documents


async def _fields(read: Read, key: int | str) -> dict[str, Any]:
    number = int(key) if isinstance(key, str) and key.isdecimal() else key
    found = []
    if isinstance(number, str):
        found = await _rows(read, "d.uid = ?", (number,))
    elif number <= m.MAX_INTEGER:  # a greater number is no id
        found = await _rows(read, "d.id = ?", (number,))
    if not found:
        raise rules.document_not_found(key)
    return found[0]


async def find(read: Read, key: int | str) -> m.Document:
    """Find a document by number or uid. Raises `document_not_found`."""
    return m.Document(**await _fields(read, key))


async def has(read: Read, uid: str) -> bool:
    return await read.value("SELECT id FROM documents WHERE uid = ?", (uid,)) is not None


async def detail(
    read: Read, key: int | str, *, chunk_offset: int = 0, chunk_limit: int = 200, text: bool = False
) -> m.DocumentDetail:
    """Return a document by number or uid with a page of its chunks. Raises `document_not_found`.

    With `chunk_limit` 0 there are no chunks; with `text` a note has its whole text.
    """
    fields = await _fields(read, key)
    found = await read.rows(
        f"SELECT {CHUNK_COLUMNS} FROM chunks c WHERE c.document_id = ? AND c.position >= CAST(? AS bigint) "  # noqa: S608
        "ORDER BY c.position LIMIT ?",
        (fields["id"], chunk_offset, chunk_limit),
    )
    whole = await content.note_text(read, fields["id"]) if text else None
    return m.DocumentDetail(
        **fields,
        chunks=[chunk(one) for one in found],
        chunk_offset=chunk_offset,
        chunk_limit=chunk_limit,
        text=msgspec.UNSET if whole is None else whole,
    )


async def check_citation(read: Read, citation: m.Citation) -> m.CitationCheck:
    """Check whether a quote still stands in its document.

    A note's text is stored whole. The text of a file is searched in the chunk at the quoted place only: a
    file is always replaced as a whole.
    """
    found = await _rows(read, "d.uid = ?", (citation.document,))
    if not found:
        return GONE
    document = m.Document(**found[0])
    text = await content.note_text(read, document.id)
    if text is None:
        holding = await _chunk_at(read, document.id, citation.start)
        quote = find_quote(citation, holding.text, begins_at=holding.start) if holding else None
    else:
        quote = find_quote(citation, text, moved=True)
        holding = await _chunk_at(read, document.id, quote.start) if quote else None
    return checked(citation, document, quote, holding)


async def _chunk_at(read: Read, document_id: int, place: int) -> m.Chunk | None:
    """Return the chunk that contains this character position of the document's text."""
    rows = await read.rows(
        f"SELECT {CHUNK_COLUMNS} FROM chunks c WHERE c.document_id = ? AND c.first <= ? AND c.beyond > ? "  # noqa: S608
        "ORDER BY c.position LIMIT 1",
        (document_id, place, place),
    )
    return chunk(rows[0]) if rows else None


async def page(read: Read, query: DocumentsQuery) -> m.DocumentList:
    """Return one page of the matching documents; ties are ordered by id in the same direction.

    `source_path` and `source_path_prefix` also match the further paths of a deduplicated document. `tag` may
    be several tags, separated by commas.
    """
    beginning, bounds = starts_with("source_path", query.source_path_prefix or "")
    of_sources = "d.id IN (SELECT document_id FROM document_sources WHERE {})"
    tags = [] if query.tag is None else dict.fromkeys(query.tag.split(","))
    conditions: list[tuple[str, list[Any]]] = [
        *((of_sources.format("source_path = ?"), [path]) for path in filter(None, [query.source_path])),
        *((of_sources.format(beginning), bounds) for _ in filter(None, [query.source_path_prefix])),
        *(("d.id IN (SELECT document_id FROM document_tags WHERE tag = ?)", [one]) for one in tags),
        *(("d.doc_type = ?", [one]) for one in filter(None, [query.doc_type])),
    ]
    condition = " AND ".join(sql for sql, _ in conditions) or "true"
    values = [value for _, of_one in conditions for value in of_one]
    place = "coalesce(d.filename, d.title)" if query.sort_by == "filename" else f"d.{query.sort_by}"
    within, reached = read.within("d.id")
    counting = f"SELECT count(*) FROM documents d WHERE {condition}{within}"  # noqa: S608
    total = await read.value(counting, (*values, *reached))
    order = f" ORDER BY {place} {query.sort_order}, d.id {query.sort_order} LIMIT ? OFFSET ?"
    found = await _rows(read, condition, values, order, (query.limit, query.offset))
    listed = [m.Document(**fields) for fields in found]
    return m.DocumentList(documents=listed, total=total, limit=query.limit, offset=query.offset)


async def note(read: Read, document_id: int) -> tuple[m.Document, str]:
    """Return a note and its whole text. Raises `document_not_found` or `not_a_note`."""
    standing = await find(read, document_id)
    text = await content.note_text(read, standing.id)
    if text is None:
        raise rules.not_a_note(document_id)
    return standing, text


async def tag_page(read: Read, prefix: str, limit: int, offset: int) -> m.TagList:
    """List the tags in use, in alphabetical order."""
    condition, bounds = starts_with("tag", prefix)
    within, reached = read.within("document_id")
    values = (*bounds, *reached)
    counting = f"SELECT count(DISTINCT tag) FROM document_tags WHERE {condition}{within}"  # noqa: S608
    total = await read.value(counting, values)
    found = await read.rows(
        "SELECT tag, count(*), sum(d.chunk_count) FROM document_tags "  # noqa: S608
        f"JOIN documents d ON d.id = document_id WHERE {condition}{within} "
        "GROUP BY tag ORDER BY tag LIMIT ? OFFSET ?",
        (*values, limit, offset),
    )
    counts = [m.TagCount(tag=tag, documents=documents, chunks=chunks) for tag, documents, chunks in found]
    return m.TagList(tags=counts, total=total, limit=limit, offset=offset)


# the commit of a job


async def commit(
    write: Write, leased: LeasedJob, prepared: Prepared, progress: JobProgress | None = None
) -> m.Job | None:
    """Insert the document and close the job; return None if the lease is void.

    A document of the same kind, SHA-256 and `dedup_scope` is not duplicated: the job closes with the id of
    the existing document and `deduplicated`, the tags are united (keeping at most one `collection:` tag, that
    of the existing document) and the new source path is added. For a job with `force_ocr` only a document
    read by OCR alone (`OCR_METHOD`) is a duplicate. The document to which the job's source pointed before is
    replaced (`kb_contracts.semantics.sources`). A duplicate whose stored text is damaged gets its content
    again.

    An update replaces the text and chunks of its note: id, uid and `created_at` stay, `updated_at` and
    `version` change, hash and size follow the text. A note that already has this text and title is unchanged.

    A job sees only documents within its caller's access scope: a document outside is neither a duplicate, nor
    replaced, nor updated.

    Raises:
        ValueError: the number of vectors differs from the number of chunks.
        EngineError: `version_conflict` if the note does not have the expected version, or if its text changed
            since it was prepared for a new title; `document_not_found` if the note is gone.
    """
    if len(prepared.vectors) != len(prepared.chunks):
        raise ValueError(f"{len(prepared.chunks)} chunks, but {len(prepared.vectors)} vectors")
    job = leased.job
    write.reach = job.reach
    await write.hold_base()
    if not await jobs.hold(write, leased):
        return None
    if progress is not None:
        await jobs.report(write, leased.lease, job.id, progress)
    write.drop_lease(leased.lease)
    if job.kind == "update":
        await write.hold_document(job.updated_note)
        standing, text = await note(write, job.updated_note)
        rules.check_version(standing.version, job.expected_version)
        text = text if job.text is None else job.text
        sha256, size = rules.text_digest(text)
        if prepared.of_note not in (None, sha256):
            raise EngineError(
                "version_conflict",
                "The text of the note was replaced from its source meanwhile. Read it again, then repeat.",
                current_version=standing.version,
            )
        outcome: m.SourceOutcome = "unchanged"
        if (sha256, prepared.title) != (standing.sha256, standing.title):
            outcome = "replaced"
            await replace_content(write, standing.id, prepared)
            columns = {
                "sha256": sha256,
                "note_hash": rules.note_hash(text),
                "size_bytes": size,
                **content.outcome_columns(prepared),
            }
            await content.assign(write, standing.id, columns)
            await write.rows("UPDATE note_texts SET text = ? WHERE document_id = ?", (text, standing.id))
            await raise_version(write, standing.id)
        left = await find(write, standing.id)
        await settle(write, job.id, left)
        return await jobs.complete(write, job.id, left, deduplicated=False, outcome=outcome, left_out=())
    return await _take_in(write, job, prepared)


@together
async def commit_note(
    write: Write, leased: LeasedJob, prepared: Prepared, progress: JobProgress | None = None
) -> m.Job | None:
    """Commit a job of the short lane, as `commit` does."""
    return await commit(write, leased, prepared, progress)


async def commit_duplicate(write: Write, leased: LeasedJob) -> m.Job | None:
    """Close a job whose document already exists, without extraction and embedding.

    Return None and change nothing if there is no such document, if its text is damaged, or if the lease is
    void.
    """
    write.reach = leased.job.reach
    await write.hold_base()
    if not await jobs.hold(write, leased):
        return None
    closed = await _take_in(write, leased.job, None)
    if closed is not None:
        write.drop_lease(leased.lease)
    return closed


async def _take_in(write: Write, job: NewJob, prepared: Prepared | None) -> m.Job | None:
    """Carry out the plan of a job and close it. Return None if content is needed but not `prepared`."""
    plan = await sources.hold_plan(write, job)
    is_hurt = (
        plan.target is not None and not plan.swaps and not await content.has_its_texts(write, plan.target)
    )
    if is_hurt:
        plan = replace(plan, swaps=True, outcome="replaced")
    if prepared is None and (plan.swaps or plan.target is None):
        return None
    for document_id in plan.removed:
        await _remove(write, document_id)
    if job.source_path is not None:
        for document_id in plan.detached:
            await sources.detach(write, document_id, job.source_path)
            await raise_version(write, document_id)
    if plan.target is None:
        assert prepared is not None  # a plan without a target requires content
        document = await insert(write, job, prepared)
    else:
        swapped = prepared if plan.swaps else None
        document = await _submitted_again(write, plan.target, job, swapped, is_hurt=is_hurt)
    if job.kind == "file" and write.bounds.originals:
        await originals.keep(write, job)
        document = await find(write, document.id)
    given = job.title if job.title != (job.filename or rules.note_title(job.text or "")) else None
    return await jobs.complete(
        write,
        job.id,
        document,
        deduplicated=plan.target is not None and not plan.swaps,
        outcome=plan.outcome,
        left_out=left_out(document, given, job.tags, job.metadata),
    )


async def _submitted_again(
    write: Write, document_id: int, job: NewJob, prepared: Prepared | None, *, is_hurt: bool
) -> m.Document:
    """Add tags and source; replace the content if `prepared`; keep the old one unless `is_hurt`."""
    standing = await find(write, document_id)
    if prepared is not None:  # first, so that the version kept is the old one
        await replace_content(write, document_id, prepared, keep=not is_hurt)
        await content.describe(write, document_id, job, prepared, job.metadata or standing.metadata)
        await originals.release(write, [standing.sha256])
    changes = [
        await _tag(write, document_id, rules.tags_to_unite(standing.tags, job.tags)),
        await sources.attach(write, standing, job),
    ]
    if prepared is not None or any(changes):
        await raise_version(write, document_id)
    return await find(write, document_id)


async def replace_content(write: Write, document_id: int, prepared: Prepared, *, keep: bool = True) -> None:
    """Replace the chunks of a document, and `keep` the old version."""
    if keep:
        await versions.keep(write, document_id, removed=False)
    await write.remove_content(document_id)
    await write.insert_content(document_id, prepared.title, prepared)


async def insert(write: Write, job: NewJob, prepared: Prepared, document_id: int | None = None) -> m.Document:
    """Insert a new document with its text, source, tags and chunks, under `document_id` if that is given."""
    if document_id is None:
        document_id = await write.next_document()
    columns = {
        "id": document_id,
        "uid": str(uuid4()),
        **content.columns_of(job, prepared, job.metadata),
        "source_path": job.source_path,
        "unsourced": job.source_path is None,
        "created_at": write.now,
        "updated_at": write.now,
    }
    await write.insert("documents", columns)
    await content.keep_text(write, document_id, job)
    if job.source_path is not None:
        await sources.point(write, job.source_path, document_id)
    await _tag(write, document_id, job.tags)
    await write.insert_content(document_id, prepared.title, prepared)
    await write.touch_base(document_id)
    return await find(write, document_id)


# changes


async def raise_version(write: Write, document_id: int) -> None:
    """Increment the version of a document and advance `updated_at`."""
    earlier = await write.value("SELECT updated_at FROM documents WHERE id = ?", (document_id,))
    sql = "UPDATE documents SET version = version + 1, updated_at = ? WHERE id = ?"
    await write.rows(sql, (following(write.now, earlier), document_id))
    await write.touch_base(document_id)


@makes_room
async def delete(
    write: Write, key: int | str, if_match: int | None = None, *, purge: bool = False
) -> m.Removed:
    """Remove a document. It can be restored during the retention time, unless `purge` is set.

    Raises `document_not_found` or `version_conflict`.
    """
    gone = await hold_version(write, key, if_match)
    await _remove(write, gone.id)
    if purge:
        await versions.drop(write, gone.id)
    return m.Removed(
        documents=1,
        chunks=gone.chunk_count,
        bytes=gone.size_bytes,
        document_id=gone.id,
        document_uid=gone.uid,
    )


@makes_room
async def remove_source(write: Write, key: int | str, path: str, if_match: int | None) -> m.Removed:
    """Remove a source from a document; remove the document if no submission of it is left.

    Raises `document_not_found`, `source_not_found` or `version_conflict`.
    """
    standing = await hold_version(write, key, if_match)
    if path not in standing.source_paths:
        raise source_not_found(path)
    if (await sources.holder(write, standing)).goes_with(path):
        return await delete(write, standing.id)
    await sources.detach(write, standing.id, path)
    await raise_version(write, standing.id)
    return m.Removed(documents=0, chunks=0, bytes=0, document_id=standing.id, document_uid=standing.uid)


async def _remove(write: Write, document_id: int) -> None:
    await versions.keep(write, document_id, removed=True)
    await write.remove_content(document_id)
    gone = await write.rows("DELETE FROM documents WHERE id = ? RETURNING sha256", (document_id,))
    await originals.release(write, [sha256 for (sha256,) in gone])
    await write.touch_base(document_id)


@makes_room
async def clear(write: Write, *, collections: bool = False) -> m.Removed:
    """Remove all documents at once, with their versions, and cancel all jobs accepted before.

    Described collections keep their description and id, unless `collections` is set.

    Raises `forbidden` to a caller with an access scope.
    """
    check_whole(write.reach)
    await write.hold_base(alone=True)
    ((documents, chunks, size),) = await write.rows(
        "SELECT count(*), coalesce(sum(chunk_count), 0), CAST(coalesce(sum(size_bytes), 0) AS bigint) "
        "FROM documents"
    )
    await write.remove_all_content()
    await write.rows("DELETE FROM documents")
    await versions.drop_all(write)
    if collections:
        await write.rows("DELETE FROM collections")
    await write.touch_base(None)
    cancelled = await jobs.cancel_all(write)
    return m.Removed(documents=documents, chunks=chunks, bytes=size, jobs_cancelled=cancelled)


async def hold(write: Write, key: int | str) -> m.Document:
    """Lock a document until the transaction ends, and return it. Raises `document_not_found`."""
    await write.hold_base()
    standing = await find(write, key)
    return await find(write, standing.id) if await write.hold_document(standing.id) else standing


async def hold_version(write: Write, key: int | str, if_match: int | None) -> m.Document:
    """Lock a document like `hold`, and check its version."""
    standing = await hold(write, key)
    rules.check_version(standing.version, if_match)
    return standing


async def set_metadata(
    write: Write, key: int | str, metadata: Mapping[str, Any], if_match: int | None
) -> m.Document:
    """Replace the metadata of a document; equal metadata leave its version unchanged.

    Raises `document_not_found` or `version_conflict`.
    """
    standing = await hold_version(write, key, if_match)
    if metadata == standing.metadata:
        return standing
    await content.assign(write, standing.id, content.metadata_columns(metadata))
    await raise_version(write, standing.id)
    return await find(write, standing.id)


async def add_tags(write: Write, key: int | str, tags: Sequence[str], if_match: int | None) -> m.Document:
    """Add tags to a document. If it has them all, the version stays unchanged.

    Raises `document_not_found`, `version_conflict`, `forbidden` or `invalid_parameter`.
    """
    standing = await hold_version(write, key, if_match)
    check_changes(write.reach, tags)
    rules.check_tags_fit(standing.tags, tags)
    await _add_tags(write, standing.id, standing.tags, tags)
    return await find(write, standing.id)


async def _add_tags(write: Write, document_id: int, present: Sequence[str], tags: Sequence[str]) -> None:
    if not await _tag(write, document_id, tags):
        return
    scope = await _scope(write, document_id)
    further = [tag for tag in tags if tag not in present]
    await content.assign(write, document_id, {"dedup_scope": scope_after_tags(scope, further)})
    await raise_version(write, document_id)


async def _scope(write: Write, document_id: int) -> str:
    return str(await write.value("SELECT dedup_scope FROM documents WHERE id = ?", (document_id,)))


async def _tag(write: Write, document_id: int, tags: Sequence[str]) -> bool:
    """Add the missing tags in this order; return whether there were any."""
    added = 0
    for tag in tags:
        added += await write.changed(
            "INSERT INTO document_tags (document_id, tag) VALUES (?, ?) ON CONFLICT DO NOTHING",
            (document_id, tag),
        )
    return added > 0


async def remove_tag(
    write: Write, key: int | str, tag: str, if_match: int | None, add: str | None = None
) -> m.Document:
    """Remove a tag, then add the tag `add`: two versions of the document, but one transaction.

    Raises `document_not_found`, `tag_not_found`, `version_conflict` or `forbidden`.
    """
    standing = await hold_version(write, key, if_match)
    added = [] if add is None else [add]
    left = [each for each in standing.tags if each != tag]
    check_changes(write.reach, [tag, *added])
    check_stays(write.reach, [*left, *added])
    gone = "DELETE FROM document_tags WHERE document_id = ? AND tag = ?"
    if not await write.changed(gone, (standing.id, tag)):
        raise rules.tag_not_found(tag)
    scope = scope_after_removal(await _scope(write, standing.id), tag, [*left, *added])
    await content.assign(write, standing.id, {"dedup_scope": scope})
    await raise_version(write, standing.id)
    await _add_tags(write, standing.id, left, added)
    return await find(write, standing.id)
