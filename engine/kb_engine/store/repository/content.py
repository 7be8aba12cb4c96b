"""The stored content of documents: inserted, checked, and rebuilt."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from kb_contracts.api import models as m
from kb_contracts.semantics.documents import text_digest
from kb_engine.index.port import Vector, Vectors
from kb_engine.store.port import NewJob, Prepared, PreparedChunk
from kb_engine.store.repository.transaction import Read, Write

NO_TEXT = "No text was found."
_COLUMNS = (
    "id", "kind", "title", "sha256", "chunk_count", "passages_hash", "extraction_method", "pages",
    "status_reason", "language", "fidelity",
)  # fmt: skip
_PREPARED = ("title", "extraction_method", "pages", "status_reason", "language", "fidelity")


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a document: the text of a note (None for a file), its chunks in order, and a vector per
    chunk, None where it is missing.

    `positions` are the stored positions of the chunks; `chunk_count` is the count stored with the document,
    and `passages_hash` the stored hash of the chunks' texts (`passages_hash`), None if there is none.
    """

    id: int
    kind: str
    title: str
    sha256: str
    chunk_count: int
    passages_hash: str | None
    extraction_method: str
    pages: int | None
    status_reason: str | None
    language: str | None
    fidelity: m.Fidelity | None
    text: str | None
    chunks: Sequence[PreparedChunk]
    positions: Sequence[int]
    vectors: Sequence[Vector | None]

    @property
    def has_its_text(self) -> bool:
        """True if the text of a note is the one that was sent; always true of a file, which has none."""
        if self.text is None:
            return self.kind != "note"
        return text_digest(self.text)[0] == self.sha256

    @property
    def has_its_passages(self) -> bool:
        """True if all chunks are there, in order, with the texts that they were stored with."""
        return self.has_all_positions and self.passages_hash in (None, self.hash_of_passages)

    @property
    def has_all_positions(self) -> bool:
        """True if the chunks that are there follow one another from the first on."""
        return [*self.positions] == [*range(len(self.positions))]

    def prepared(self, chunks: Sequence[PreparedChunk], vectors: Vectors) -> Prepared:
        """Return the content with these chunks, ready to be stored."""
        return Prepared(chunks=chunks, vectors=vectors, **prepared_fields(self))

    @property
    def hash_of_passages(self) -> str:
        """The `passages_hash` of the chunks as they are now."""
        return passages_hash(chunk.text for chunk in self.chunks)


def prepared_fields(of: object) -> dict[str, Any]:
    """Return the fields of a `Prepared` that stored content and a kept version have, too."""
    return {name: getattr(of, name) for name in _PREPARED}


def passages_hash(texts: Iterable[str]) -> str:
    """SHA-256 over the SHA-256 of each text, in hexadecimal digits, in order.

    One hash a document and not one a chunk: a passage of a file is not made again by itself, so that it is
    the document that has to be restored or sent again, and a missing last passage shows as well. It adds one
    column to a row that is written anyway, and a microsecond for each passage.
    """
    whole = hashlib.sha256()
    for text in texts:
        whole.update(text_digest(text)[0].encode())
    return whole.hexdigest()


def fidelity_in(column: str | None) -> m.Fidelity | None:
    return None if column is None else msgspec.json.decode(column, type=m.Fidelity)


async def note_text(read: Read, document_id: int) -> str | None:
    """Return the text of a note, as it was sent. A file has no text."""
    text = await read.value("SELECT text FROM note_texts WHERE document_id = ?", (document_id,))
    return None if text is None else str(text)


async def passages(read: Read, document_id: int) -> list[str]:
    """Return the texts of the chunks of a document, in order."""
    sql = "SELECT text FROM chunks WHERE document_id = ? ORDER BY position"
    return [text for (text,) in await read.rows(sql, (document_id,))]


async def assign(write: Write, document_id: int, columns: Mapping[str, Any]) -> None:
    assignments = ", ".join(f"{name} = ?" for name in columns)
    await write.rows(
        f"UPDATE documents SET {assignments} WHERE id = ?",  # noqa: S608
        (*columns.values(), document_id),
    )


async def describe(
    write: Write, document_id: int, job: NewJob, prepared: Prepared, metadata: Mapping[str, Any]
) -> None:
    """Update the columns of a document for its new content, and store the text of a note."""
    await assign(write, document_id, columns_of(job, prepared, metadata))
    await write.rows("DELETE FROM note_texts WHERE document_id = ?", (document_id,))
    await keep_text(write, document_id, job)


def columns_of(job: NewJob, prepared: Prepared, metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "kind": job.kind,
        "doc_type": job.doc_type,
        "format": job.format,
        "filename": job.filename,
        "size_bytes": job.size_bytes,
        "sha256": job.sha256,
        "note_hash": job.content_hash if job.kind == "note" else None,
        "dedup_scope": job.dedup_scope,
        **metadata_columns(metadata),
        **outcome_columns(prepared),
    }


async def keep_text(write: Write, document_id: int, job: NewJob) -> None:
    """Store the whole text of a note. A file has no stored text."""
    if job.kind == "note":
        sql = "INSERT INTO note_texts (document_id, text) VALUES (?, ?)"
        await write.rows(sql, (document_id, job.text or ""))


def metadata_columns(metadata: Mapping[str, Any]) -> dict[str, Any]:
    source_type = metadata.get("source_type")
    return {
        "metadata": msgspec.json.encode(metadata).decode(),
        # a column of its own, so that a filter does not parse JSON
        "source_type": source_type if isinstance(source_type, str) else None,
    }


def outcome_columns(prepared: Prepared) -> dict[str, Any]:
    """Return the columns that change with the content."""
    searchable = bool(prepared.chunks)
    return {
        "title": prepared.title,
        "language": prepared.language,
        "fidelity": None if prepared.fidelity is None else msgspec.json.encode(prepared.fidelity).decode(),
        "status": "searchable" if searchable else "empty",
        "status_reason": prepared.status_reason or (None if searchable else NO_TEXT),
        "extraction_method": prepared.extraction_method,
        "pages": prepared.pages,
        **_passage_columns(prepared),
    }


def _passage_columns(prepared: Prepared) -> dict[str, Any]:
    return {
        "chunk_count": len(prepared.chunks),
        "token_count": sum(one.tokens for one in prepared.chunks),
        "passages_hash": passages_hash(one.text for one in prepared.chunks),
    }


async def count(read: Read) -> int:
    return int(await read.value("SELECT count(*) FROM documents"))


async def ids_after(read: Read, document_id: int, limit: int) -> list[int]:
    """Return the next document ids in ascending order."""
    sql = "SELECT id FROM documents WHERE id > ? ORDER BY id LIMIT ?"
    return [int(found) for (found,) in await read.rows(sql, (document_id, limit))]


async def content(read: Read, document_id: int) -> Content | None:
    row = await read.row(f"SELECT {', '.join(_COLUMNS)} FROM documents WHERE id = ?", (document_id,))  # noqa: S608
    if row is None:
        return None
    sql = (
        f"SELECT c.text, c.page, c.heading, c.first, c.beyond, c.tokens, c.uid, c.position, {read.vector} "  # noqa: S608
        "FROM chunks c LEFT JOIN vectors v ON v.chunk_id = c.id WHERE c.document_id = ? ORDER BY c.position"
    )
    found = await read.rows(sql, (document_id,))
    fields: dict[str, Any] = dict(zip(_COLUMNS, row, strict=True))
    fields["fidelity"] = fidelity_in(fields["fidelity"])
    return Content(
        **fields,
        text=await note_text(read, document_id),
        chunks=[
            PreparedChunk(text, page, heading, first, beyond, tokens or 0, uid)
            for text, page, heading, first, beyond, tokens, uid, _, _ in found
        ],
        positions=[row[7] for row in found],
        vectors=[_vector(read, row[8]) for row in found],
    )


async def has_its_texts(read: Read, document_id: int) -> bool:
    """True if the text of a note and the passages of the document are those that were stored."""
    sql = "SELECT kind, sha256, passages_hash, chunk_count FROM documents WHERE id = ?"
    kind, sha256, of_passages, count = await read.row(sql, (document_id,)) or (None, "", None, 0)
    if kind == "note":
        text = await note_text(read, document_id)
        if text is None or text_digest(text)[0] != sha256:
            return False
    texts = await passages(read, document_id)
    return len(texts) == count if of_passages is None else passages_hash(texts) == of_passages


async def first_vector(read: Read, document_id: int) -> Vector | None:
    """The embedding of the document's first chunk, or None if it has no chunk or the vector is damaged."""
    sql = (
        f"SELECT {read.vector} FROM chunks c JOIN vectors v ON v.chunk_id = c.id "  # noqa: S608
        "WHERE c.document_id = ? ORDER BY c.position LIMIT 1"
    )
    return _vector(read, await read.value(sql, (document_id,)))


async def lacks_words(read: Read, document_id: int) -> bool:
    """True if words of a document are missing in the base. Indexes in files are not checked."""
    return bool(await read.value(read.lacking_words, (document_id,)))


async def renew(write: Write, document_id: int, prepared: Prepared) -> None:
    """Store the chunks of a document again, with their words and vectors; the version does not change."""
    await write.hold_base()
    await write.hold_document(document_id)
    await write.remove_content(document_id)
    await write.insert_content(document_id, prepared.title, prepared)
    await assign(write, document_id, _passage_columns(prepared))
    await write.touch_base(document_id)


def _vector(read: Read, stored: Any) -> Vector | None:
    if stored is None:
        return None
    try:
        vector: Vector = read.vectors_of([stored])[0]
        return vector
    except ValueError:  # the number of bytes is not a multiple of the item size
        return None
