"""Old versions of documents, kept whole for some time after the document was replaced or removed.

A version can be restored without its file and without the embedder: it has the text, the place of each
passage, and the vectors, as long as no different embedder fills the base.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import numpy as np

from kb_contracts.api import models as m
from kb_contracts.semantics.documents import document_not_found, text_digest
from kb_contracts.semantics.versions import check_version_kept
from kb_engine.index.port import Vectors
from kb_engine.store.clock import parse, stamp
from kb_engine.store.port import Prepared, PreparedChunk
from kb_engine.store.repository import originals
from kb_engine.store.repository.content import content, prepared_fields
from kb_engine.store.repository.transaction import Read, Write, makes_room

_MEMBERS = (
    "kind", "doc_type", "format", "filename", "size_bytes", "sha256", "dedup_scope", "unsourced",
    "created_at", "updated_at",
)  # fmt: skip
_LISTED = "document_id, uid, version, removed, kept_at, expires_at, members"
_VECTOR_TYPE = "<f4"
_BREAK = "\n"


class Members(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a document, without its text."""

    kind: m.JobKind
    title: str
    doc_type: m.DocType
    format: str | None
    filename: str | None
    source_paths: list[str]
    tags: list[str]
    metadata: dict[str, Any]
    size_bytes: int
    sha256: str
    dedup_scope: str
    unsourced: bool
    created_at: str
    updated_at: str
    extraction_method: str
    pages: int | None
    status_reason: str | None
    language: str | None
    chunk_count: int
    fidelity: m.Fidelity | None = None


class Place(msgspec.Struct, frozen=True, array_like=True):
    """The place of a passage in the text, and its number of tokens."""

    start: int
    end: int
    page: int | None
    heading: str | None
    tokens: int


@dataclass(frozen=True, slots=True)
class Past:
    """A whole version. `vectors` is None if a different embedder has filled the base since."""

    document_id: int
    uid: str
    version: int
    removed: bool
    members: Members
    text: str
    places: Sequence[Place]
    vectors: Vectors | None

    @property
    def chunks(self) -> list[PreparedChunk]:
        return [
            PreparedChunk(
                self.text[each.start : each.end], each.page, each.heading, each.start, each.end, each.tokens
            )
            for each in self.places
        ]

    def prepared(self, vectors: Vectors) -> Prepared:
        """Return the content, ready to be stored."""
        return Prepared(chunks=self.chunks, vectors=vectors, **prepared_fields(self.members))


# read


async def page(read: Read, key: int | str, limit: int, offset: int) -> m.PastVersionList:
    """List the versions of a document, the latest first. Raises `document_not_found`."""
    document_id = await _document(read, key)
    return await _page(read, "document_id = ?", (document_id,), limit, offset)


async def trash(read: Read, limit: int, offset: int) -> m.PastVersionList:
    """List the removed documents, the last removed first.

    A version is within the access scope by its tags at that time; a document by its current tags, or by its
    last ones.
    """
    return await _page(read, "removed", (), limit, offset)


async def detail(
    read: Read, key: int | str, version: int, text_offset: int, text_limit: int
) -> m.PastVersionDetail:
    """Return one version with a part of its text. Raises `document_not_found` or `version_not_found`."""
    document_id = await _document(read, key)
    await _check_kept(read, document_id, version)
    row = await read.row(
        f"SELECT {_LISTED}, text FROM versions WHERE document_id = ? AND version = ?",  # noqa: S608
        (document_id, version),
    )
    assert row is not None, "it is kept"
    *listed, text = row  # sliced here: SQL counts characters only up to a NUL, or counts its replacement
    return m.PastVersionDetail(
        **_listed(listed),
        metadata=msgspec.json.decode(listed[-1], type=Members).metadata,
        text=text[text_offset : text_offset + text_limit],
        text_offset=text_offset,
        text_length=len(text),
    )


async def find(read: Read, key: int | str, version: int) -> Past:
    """Return a whole version. Raises `document_not_found` or `version_not_found`."""
    document_id = await _document(read, key)
    await _check_kept(read, document_id, version)
    row = await read.row(
        "SELECT uid, removed, members, text, passages, vectors FROM versions "
        "WHERE document_id = ? AND version = ?",
        (document_id, version),
    )
    assert row is not None, "it is kept"
    uid, removed, members, text, passages, stored = row
    places = msgspec.json.decode(passages, type=list[Place])
    vectors = None if stored is None else np.frombuffer(stored, _VECTOR_TYPE)
    return Past(
        document_id=document_id,
        uid=uid,
        version=version,
        removed=bool(removed),
        members=msgspec.json.decode(members, type=Members),
        text=text,
        places=places,
        vectors=None if vectors is None else vectors.reshape(len(places), -1 if places else 0),
    )


@dataclass(frozen=True, slots=True)
class Hurt:
    """A version whose text is not the one that was kept."""

    id: int
    document_id: int
    version: int
    title: str


async def hurt_after(read: Read, last: int, limit: int) -> tuple[list[Hurt], int]:
    """The hurt ones of the next versions, in the order in which they were kept, and the last one read; 0: all
    were. Begin with 0."""
    columns = "id, document_id, version, members, text, text_hash"
    sql = f"SELECT {columns} FROM versions WHERE id > ? ORDER BY id LIMIT ?"  # noqa: S608
    found = await read.rows(sql, (last, limit))
    hurt = [
        Hurt(number, document_id, version, msgspec.json.decode(members, type=Members).title)
        for number, document_id, version, members, text, known in found
        if known not in (None, text_digest(text)[0])
    ]
    return hurt, int(found[-1][0]) if found else 0


async def last(read: Read, document_id: int) -> int:
    """Return the highest kept version of a document, or 0."""
    return int(
        await read.value("SELECT max(version) FROM versions WHERE document_id = ?", (document_id,)) or 0
    )


async def _document(read: Read, key: int | str) -> int:
    """Return the id of a document that exists or has kept versions. Raises `document_not_found`."""
    is_number = not isinstance(key, str)
    if is_number and int(key) > m.MAX_INTEGER:
        raise document_not_found(key)
    within, reached = read.within("id")
    named = f"SELECT id FROM documents WHERE {'id' if is_number else 'uid'} = ?{within}"  # noqa: S608
    standing = await read.value(named, (key, *reached))
    if standing is not None:
        return int(standing)
    where, values = read.version_within()
    if where:  # for an existing document outside the scope, no version is removed
        where += " AND v.removed"
    kept = await read.value(
        f"SELECT v.document_id FROM versions v WHERE v.{'document_id' if is_number else 'uid'} = ? "  # noqa: S608
        f"AND v.expires_at > ?{where} LIMIT 1",
        (key, read.steady, *values),
    )
    if kept is None:
        raise document_not_found(key)
    return int(kept)


async def _check_kept(read: Read, document_id: int, version: int) -> None:
    where, values = read.version_within()
    sql = f"SELECT v.version FROM versions v WHERE v.document_id = ? AND v.expires_at > ?{where}"  # noqa: S608
    found = await read.rows(sql, (document_id, read.steady, *values))
    check_version_kept(version, [int(number) for (number,) in found])


async def _page(
    read: Read, condition: str, values: Sequence[Any], limit: int, offset: int
) -> m.PastVersionList:
    within, reached = read.version_within()
    where = f"WHERE {condition} AND expires_at > ?{within}"
    bound = (*values, read.steady, *reached)
    total = await read.value(f"SELECT count(*) FROM versions v {where}", bound)  # noqa: S608
    found = await read.rows(
        f"SELECT {_LISTED} FROM versions v {where} ORDER BY id DESC LIMIT ? OFFSET ?",  # noqa: S608
        (*bound, limit, offset),
    )
    listed = [m.PastVersion(**_listed(row)) for row in found]
    return m.PastVersionList(versions=listed, total=total, limit=limit, offset=offset)


def _listed(row: Sequence[Any]) -> dict[str, Any]:
    *values, encoded = row
    fields = dict(zip(_LISTED.split(", ")[:-1], values, strict=True))
    members = msgspec.json.decode(encoded, type=Members)
    further = {name: getattr(members, name) for name in m.PastVersion.__struct_fields__ if name not in fields}
    return {**fields, "removed": bool(fields["removed"]), **further}


# write


async def keep(write: Write, document_id: int, *, removed: bool) -> None:
    """Keep the version of a document about to change; drop the oldest over the limit."""
    if not write.bounds.versions:
        await drop(write, document_id)
        return
    standing = await content(write, document_id)
    assert standing is not None, "the caller holds it"
    sql = (
        f"SELECT d.uid, d.version, d.metadata, {write.sources}, {write.tags}, "  # noqa: S608
        f"{', '.join(f'd.{name}' for name in _MEMBERS)} FROM documents d WHERE d.id = ?"
    )
    row = await write.row(sql, (document_id,))
    assert row is not None, "the caller holds it"
    uid, version, metadata, paths, tags, *values = row
    text, places = _text_of(standing.text, standing.chunks)
    known = dict(zip(_MEMBERS, values, strict=True))
    members = Members(
        **{**known, "unsourced": bool(known["unsourced"])},
        **prepared_fields(standing),
        source_paths=write.read_list(paths),
        tags=write.read_list(tags),
        metadata=msgspec.json.decode(metadata),
        chunk_count=len(places),
    )
    columns = {
        "document_id": document_id,
        "uid": uid,
        "version": version,
        "removed": removed,
        "kept_at": write.now,
        "expires_at": stamp(parse(write.now) + timedelta(days=write.bounds.version_days)),
        "members": msgspec.json.encode(members).decode(),
        "text": text,
        "text_hash": text_digest(text)[0],
        "passages": msgspec.json.encode(places).decode(),
        "vectors": _joined(standing.vectors),
        "original": members.sha256 if members.kind == "file" else None,
    }
    await write.insert("versions", columns)
    await _delete(
        write,
        "document_id = ? AND id <= ("
        "SELECT id FROM versions WHERE document_id = ? ORDER BY id DESC LIMIT 1 OFFSET ?)",
        (document_id, document_id, write.bounds.versions),
    )


async def purge(write: Write, key: int | str) -> m.Purged:
    """Drop all versions; return those in the access scope. Raises `document_not_found`."""
    document_id = await _document(write, key)
    within, reached = write.version_within()
    counting = f"SELECT count(*) FROM versions v WHERE v.document_id = ?{within}"  # noqa: S608
    counted = int(await write.value(counting, (document_id, *reached)))
    await drop(write, document_id)
    return m.Purged(versions=counted)


async def drop(write: Write, document_id: int) -> int:
    """Drop all versions of a document by id; return their number."""
    return await _delete(write, "document_id = ?", (document_id,))


async def brought_back(write: Write, past: Past) -> None:
    """Update the versions of a restored document: clear the mark of removal."""
    if past.removed:
        gone = "DELETE FROM versions WHERE document_id = ? AND version = ?"
        await write.rows(gone, (past.document_id, past.version))
    await write.rows("UPDATE versions SET removed = false WHERE document_id = ?", (past.document_id,))


async def forget_expired(write: Write) -> int:
    """Delete the expired versions; return their number."""
    return await _delete(write, "expires_at <= ?", (write.steady,))


@makes_room
async def drop_all(write: Write) -> int:
    """Drop all versions of all documents; return their number."""
    count = await write.changed("DELETE FROM versions", ())
    await originals.release_all(write)
    return count


async def _delete(write: Write, condition: str, values: Sequence[Any]) -> int:
    gone = await write.rows(f"DELETE FROM versions WHERE {condition} RETURNING original", values)  # noqa: S608
    await originals.release(write, [sha256 for (sha256,) in gone])
    return len(gone)


def _text_of(note: str | None, chunks: Sequence[PreparedChunk]) -> tuple[str, list[Place]]:
    """Return the text and the places of the passages in it: the text of a note, or the joined passages of a
    file.

    Passages stored by earlier engines may overlap or have a wrong length; they are placed one after another.
    """
    if note is not None:
        return note, [_place(each, each.start, each.end) for each in chunks]
    parts: list[str] = []
    places = []
    at = 0
    for each in chunks:
        gap = max(0, each.start - at)
        parts += [_BREAK * gap, each.text]
        at += gap + len(each.text)
        places.append(_place(each, at - len(each.text), at))
    return "".join(parts), places


def _place(chunk: PreparedChunk, start: int, end: int) -> Place:
    return Place(start, end, chunk.page, chunk.heading, chunk.tokens)


def _joined(vectors: Sequence[Vectors | None]) -> bytes | None:
    """Concatenate all vectors as bytes; None if one is missing."""
    known = [each for each in vectors if each is not None]
    if len(known) < len(vectors) or len({each.shape for each in known}) > 1:
        return None
    return b"".join(np.ascontiguousarray(each, _VECTOR_TYPE).tobytes() for each in known)
