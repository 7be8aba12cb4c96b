"""The original files of documents, if the base keeps them: one per content, under its SHA-256.

A file is kept by the commit of its job, as long as a document or a kept version was made from it. Code that
removes such a row must call `release` in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterable

from kb_engine.store.port import NewJob
from kb_engine.store.repository.transaction import Read, Write

_UNUSED = (
    "NOT EXISTS (SELECT 1 FROM documents d WHERE d.sha256 = originals.sha256 AND d.kind = 'file') "
    "AND NOT EXISTS (SELECT 1 FROM versions v WHERE v.original = originals.sha256)"
)
IS_KEPT = "d.kind = 'file' AND EXISTS (SELECT 1 FROM originals o WHERE o.sha256 = d.sha256)"
"""Condition on a document `d`: its file is kept."""

_OLDEST_FIRST = (
    "SELECT o.sha256, o.size_bytes FROM originals o LEFT JOIN documents d ON d.sha256 = o.sha256 "
    "AND d.kind = 'file' GROUP BY o.sha256, o.size_bytes ORDER BY coalesce(max(d.updated_at), ''), max(d.id)"
)
"""Files of versions first, then those of documents in the order of their last changes."""
_FILLED = 0.95
"""Part of the bound that is left after the oldest files were dropped: not each later file drops some."""


async def keep(write: Write, job: NewJob) -> None:
    """Keep the file of a job for its document, replacing a file kept before.

    Where all files are over the bound, the oldest are dropped, and room is made for later ones.
    """
    most = write.bounds.originals_bytes
    if job.spool is None or 0 < most < job.size_bytes:
        return
    await take(write, job.sha256, job.size_bytes, job.spool)
    if not most or (left := await kept_bytes(write)) <= most:
        return
    dropped = []
    for sha256, size in await write.rows(_OLDEST_FIRST):
        if left <= most * _FILLED:
            break
        if sha256 != job.sha256:
            dropped.append(sha256)
            left -= size
    await write.drop_originals(dropped)


async def take(write: Write, sha256: str, size: int, name: str) -> None:
    """Keep a file of the spool with this content."""
    await write.hold_content("original", sha256, "")
    await write.keep_original(sha256, size, name)


async def release(write: Write, hashes: Iterable[str | None]) -> None:
    """Drop the files with these hashes, after rows with them were removed, unless still used."""
    for sha256 in sorted(set(filter(None, hashes))):
        if await write.value("SELECT true FROM originals WHERE sha256 = ?", (sha256,)):
            await write.hold_content("original", sha256, "")
            await _drop(write, "sha256 = ?", (sha256,))


async def release_all(write: Write) -> None:
    """Drop all files that are no longer used."""
    await _drop(write, "true", ())


async def of(read: Read, document_id: int) -> str | None:
    """Return the SHA-256 of the file of a document; None if it is not kept."""
    sql = f"SELECT d.sha256 FROM documents d WHERE d.id = ? AND {IS_KEPT}"  # noqa: S608
    sha256 = await read.value(sql, (document_id,))
    return None if sha256 is None else str(sha256)


async def every(read: Read) -> dict[str, int]:
    """Return the sizes of all files in bytes, by SHA-256."""
    return {sha256: int(size) for sha256, size in await read.rows("SELECT sha256, size_bytes FROM originals")}


async def kept_bytes(read: Read) -> int:
    """Return the size of all files in bytes."""
    return int(await read.value("SELECT CAST(coalesce(sum(size_bytes), 0) AS bigint) FROM originals"))


async def bytes_of_versions(read: Read) -> int:
    """Return the number of bytes that only kept versions use."""
    sql = (
        "SELECT CAST(coalesce(sum(size_bytes), 0) AS bigint) FROM originals WHERE NOT EXISTS "
        "(SELECT 1 FROM documents d WHERE d.sha256 = originals.sha256 AND d.kind = 'file')"
    )
    return int(await read.value(sql))


async def _drop(write: Write, condition: str, values: tuple[str, ...]) -> None:
    sql = f"SELECT sha256 FROM originals WHERE {condition} AND {_UNUSED}"  # noqa: S608
    if gone := [sha256 for (sha256,) in await write.rows(sql, values)]:
        await write.drop_originals(gone)
