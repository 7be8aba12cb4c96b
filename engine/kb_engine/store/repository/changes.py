"""The log of changes: what an index that keeps its data for itself has not applied yet, for its follower.

Every change of a document is a generation, counted in the transaction that makes it (`Write.touch_base`).
Where the base has such an index the transaction also notes the document in `index_changes`, until the index
has applied it. Generations that were not noted, by an engine that was started without the index, are missing
in the log, which shows as a gap.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from kb_engine.index.follower import Pending
from kb_engine.index.port import Changes, IndexedDocument
from kb_engine.store.repository.transaction import Read, Write
from kb_engine.store.times import parse

T = TypeVar("T")


async def generation(read: Read) -> int:
    """The number of the last change."""
    return int(await read.value(read.dialect.generation))


async def since(read: Read, applied: int, limit: int) -> Pending | None:
    """What has changed since a generation; None where the log has a gap, or ends before it."""
    latest = await generation(read)
    if applied == latest:
        return Pending(Changes(), applied)
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
    documents = await _documents(read, *read.dialect.among(ids)) if ids else []
    gone = set(ids) - {document.id for document in documents}
    return Pending(Changes(cleared, sorted(gone), documents), log[-1][0])


async def documents_after(read: Read, document_id: int, limit: int) -> list[IndexedDocument]:
    """The next documents by id."""
    return await _documents(
        read, "IN (SELECT id FROM documents WHERE id > ? ORDER BY id LIMIT ?)", (document_id, limit)
    )


async def _documents(read: Read, those: str, values: Sequence[Any]) -> list[IndexedDocument]:
    dialect = read.dialect
    found = await read.rows(
        f"SELECT d.id, d.title, d.doc_type, d.format, d.source_type, d.created_at, d.updated_at, "  # noqa: S608
        f"{dialect.sources}, {dialect.tags} FROM documents d WHERE d.id {those} ORDER BY d.id",
        values,
    )
    chunks: dict[int, list[tuple[int, str | None, str, object]]] = {row[0]: [] for row in found}
    for document_id, *chunk in await read.rows(
        f"SELECT c.document_id, c.id, c.heading, c.text, {dialect.vector} FROM chunks c "  # noqa: S608
        f"JOIN vectors v ON v.chunk_id = c.id WHERE c.document_id {those} ORDER BY c.id",
        values,
    ):
        chunks[document_id].append((chunk[0], chunk[1], chunk[2], chunk[3]))
    documents = []
    for id_, title, doc_type, form, source_type, created_at, updated_at, sources, tags in found:
        own = chunks[id_]
        documents.append(
            IndexedDocument(
                id=id_,
                title=title,
                doc_type=doc_type,
                format=form,
                source_type=source_type,
                source_paths=dialect.read_list(sources),
                tags=dialect.read_list(tags),
                created_at=parse(created_at),
                updated_at=parse(updated_at),
                chunk_ids=[chunk_id for chunk_id, _, _, _ in own],
                headings=[heading for _, heading, _, _ in own],
                texts=[text for _, _, text, _ in own],
                vectors=dialect.vectors_of([vector for _, _, _, vector in own]),
            )
        )
    return documents


class RunRead(Protocol):
    """Runs reads on one state of the base; again, where the connection to it was lost."""

    def __call__(self, work: Callable[[Read], Coroutine[Any, Any, T]], /) -> Awaitable[T]:
        """What they lead to."""


class RunWrite(Protocol):
    """Runs one write transaction."""

    def __call__(self, work: Callable[[Write], Coroutine[Any, Any, T]], /) -> Awaitable[T]:
        """What it leads to."""


class ChangeLog:
    """The log of one store, as the source of its follower."""

    def __init__(self, read: RunRead, write: RunWrite) -> None:
        self._read = read
        self._write = write

    async def generation(self) -> int:
        """The number of the last change."""
        return await self._read(generation)

    async def changes_since(self, generation: int, limit: int) -> Pending | None:
        """What has changed since a generation, in up to so many steps; None where that is not known."""
        return await self._read(lambda read: since(read, generation, limit))

    async def documents_after(self, document_id: int, limit: int) -> list[IndexedDocument]:
        """The next documents by id."""
        return await self._read(lambda read: documents_after(read, document_id, limit))

    async def forget_changes(self, generation: int) -> None:
        """The index has applied all up to this generation."""
        await self._write(
            lambda write: write.rows("DELETE FROM index_changes WHERE generation <= ?", (generation,))
        )
