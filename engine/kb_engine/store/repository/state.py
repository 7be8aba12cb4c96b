"""The base as a whole: totals, health, and the log of changes for a separate index.

Every change of a document gets a generation, counted in the same transaction (`Write.touch_base`). If the
base has a separate index, the transaction also records the document in `index_changes`, until the index has
applied it. An engine started without that index does not record its changes, which leaves a gap in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kb_contracts.api import models as m
from kb_contracts.semantics.jobs import Origin, open_failures
from kb_engine.index.port import Changes, IndexedDocument
from kb_engine.store.clock import parse
from kb_engine.store.port import Counts
from kb_engine.store.repository import originals
from kb_engine.store.repository.transaction import Read, Write


async def counts(read: Read) -> Counts:
    """Return the totals within the access scope, read from indexes alone, except after failed jobs.

    With an access scope `last_updated` ignores removed documents, and the sizes of the base are 0.
    """
    within, reached = read.within("d.id")
    groups = await read.rows(
        "SELECT doc_type, status, count(*), sum(chunk_count), sum(size_bytes) FROM documents d "  # noqa: S608
        f"WHERE true{within} GROUP BY doc_type, status",
        reached,
    )
    jobs_within, reached_jobs = read.job_within()
    by_job_status = f"SELECT status, count(*) FROM jobs WHERE true{jobs_within} GROUP BY status"  # noqa: S608
    queue = {status: int(count) for status, count in await read.rows(by_job_status, reached_jobs)}
    last_updated = f"SELECT max(d.updated_at) FROM documents d WHERE true{within}"  # noqa: S608
    is_whole = read.reach is None
    by_status = {
        status: sum(n for _, s, n, _, _ in groups if s == status) for status in ("searchable", "empty")
    }
    by_type: dict[str, int] = {}
    for doc_type, _, documents, _, _ in groups:
        by_type[doc_type] = by_type.get(doc_type, 0) + documents
    return Counts(
        documents=m.DocumentCounts(total=sum(by_status.values()), **by_status, by_type=by_type),
        chunks=sum(int(chunks) for _, _, _, chunks, _ in groups),
        queue=m.QueueState(**{status: queue.get(status, 0) for status in m.QueueState.__struct_fields__}),
        open_failures=await _open_failures(read) if queue.get("failed") else 0,
        originals_bytes=sum(int(size) for _, _, _, _, size in groups),
        kept_originals_bytes=await originals.kept_bytes(read) if is_whole else 0,
        database_bytes=await read.size() if is_whole else 0,
        last_updated=await read.value(*((read.last_updated,) if is_whole else (last_updated, reached))),
    )


async def growth(read: Read) -> tuple[list[tuple[str, int, int]], dict[str, int]]:
    """Return the new documents and passages of each day, and the documents by language."""
    within, reached = read.within("d.id")
    days = await read.rows(
        "SELECT substr(d.created_at, 1, 10) AS day, count(*), sum(d.chunk_count) FROM documents d "  # noqa: S608
        f"WHERE true{within} GROUP BY day",
        reached,
    )
    languages = await read.rows(
        "SELECT d.language, count(*) FROM documents d "  # noqa: S608
        f"WHERE d.language IS NOT NULL{within} GROUP BY d.language ORDER BY d.language",
        reached,
    )
    return [(day, documents, int(chunks)) for day, documents, chunks in days], dict(map(tuple, languages))


async def _open_failures(read: Read) -> int:
    within, reached = read.job_within()
    failed = "FROM jobs WHERE status = 'failed'"
    rows = await read.rows(
        "SELECT status, error_code, source_path, source_scope, filename, dedup_scope FROM jobs "  # noqa: S608
        f"WHERE (status = 'failed' OR status = 'completed' AND seq > (SELECT min(seq) {failed}) "
        f"AND (source_path IN (SELECT source_path {failed}) OR filename IN (SELECT filename {failed})))"
        f"{within} ORDER BY seq",
        reached,
    )
    return open_failures((status, code, Origin(*origin)) for status, code, *origin in rows)


async def ping(write: Write) -> None:
    """Check that the base can be written."""
    await write.rows(write.ping, (write.now,))


async def generation(read: Read) -> int:
    """Return the number of the last change, at least 1."""
    return int(await read.value(read.generation))


async def changes_since(read: Read, applied: int, limit: int) -> tuple[Changes, int] | None:
    """Return up to `limit` changes after a generation, and the generation that they lead to.

    Return None if the log has a gap or does not reach back so far.
    """
    latest = await generation(read)
    if applied == latest:
        return Changes(), applied
    log = await read.rows(
        "SELECT generation, document_id FROM index_changes WHERE generation > ? ORDER BY generation LIMIT ?",
        (applied, limit),
    )
    if [number for number, _ in log] != list(range(applied + 1, applied + 1 + len(log))) or not log:
        return None
    touched = [document_id for _, document_id in log]
    cleared = None in touched
    if cleared:
        touched = touched[len(touched) - touched[::-1].index(None) :]
    ids = list(dict.fromkeys(touched))
    documents = await _documents(read, read.among, (read.list_value(ids),)) if ids else []
    gone = set(ids) - {document.id for document in documents}
    return Changes(cleared, sorted(gone), documents), log[-1][0]


async def documents_after(read: Read, document_id: int, limit: int) -> list[IndexedDocument]:
    return await _documents(
        read, "IN (SELECT id FROM documents WHERE id > ? ORDER BY id LIMIT ?)", (document_id, limit)
    )


async def forget_changes(write: Write, generation: int) -> None:
    """Truncate the log up to this generation, which the index has applied."""
    await write.rows("DELETE FROM index_changes WHERE generation <= ?", (generation,))


async def _documents(read: Read, those: str, values: Sequence[Any]) -> list[IndexedDocument]:
    found = await read.rows(
        f"SELECT d.id, d.title, d.doc_type, d.format, d.source_type, d.language, d.created_at, d.updated_at, "  # noqa: S608
        f"{read.sources}, {read.tags} FROM documents d WHERE d.id {those} ORDER BY d.id",
        values,
    )
    chunks: dict[int, list[Sequence[Any]]] = {row[0]: [] for row in found}
    for document_id, *chunk in await read.rows(
        f"SELECT c.document_id, c.id, c.heading, c.text, {read.vector} FROM chunks c "  # noqa: S608
        f"JOIN vectors v ON v.chunk_id = c.id WHERE c.document_id {those} ORDER BY c.id",
        values,
    ):
        chunks[document_id].append(chunk)
    documents = []
    for id_, title, doc_type, form, source_type, language, created_at, updated_at, sources, tags in found:
        own = chunks[id_]
        documents.append(
            IndexedDocument(
                id=id_,
                title=title,
                doc_type=doc_type,
                format=form,
                source_type=source_type,
                source_paths=read.read_list(sources),
                tags=read.read_list(tags),
                created_at=parse(created_at),
                updated_at=parse(updated_at),
                chunk_ids=[chunk_id for chunk_id, _, _, _ in own],
                headings=[heading for _, heading, _, _ in own],
                texts=[text for _, _, text, _ in own],
                vectors=read.vectors_of([vector for _, _, _, vector in own]),
                language=language,
            )
        )
    return documents
