"""The files that documents were made of, where they are kept: one of each content, under its SHA-256.

A file is kept by the commit of the job that it came with, and for as long as a document, or what is kept of
one, was made of it. Whoever removes such a row says so here, in the same transaction.
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
"""A condition on a document `d`: that its file is kept."""


async def keep(write: Write, job: NewJob) -> None:
    """Keep the file of a job, whose document has its content; in the place of one that was kept before."""
    if job.spool is not None:
        await take(write, job.sha256, job.size_bytes, job.spool)


async def take(write: Write, sha256: str, size: int, name: str) -> None:
    """Keep a file of the spool, of this content."""
    await write.hold_content("original", sha256, "")
    await write.keep_original(sha256, size, name)


async def release(write: Write, hashes: Iterable[str | None]) -> None:
    """Rows with these hashes have gone: files that nothing else was made of go too."""
    for sha256 in sorted(set(filter(None, hashes))):
        if await write.value("SELECT true FROM originals WHERE sha256 = ?", (sha256,)):
            await write.hold_content("original", sha256, "")
            await _drop(write, "sha256 = ?", (sha256,))


async def release_all(write: Write) -> None:
    """As `release`, after any rows."""
    await _drop(write, "true", ())


async def of(read: Read, document_id: int) -> str | None:
    """The SHA-256 of the file of a document; None where none is kept."""
    sql = f"SELECT d.sha256 FROM documents d WHERE d.id = ? AND {IS_KEPT}"  # noqa: S608
    sha256 = await read.value(sql, (document_id,))
    return None if sha256 is None else str(sha256)


async def every(read: Read) -> dict[str, int]:
    """The sizes of all files, by their content."""
    return {sha256: int(size) for sha256, size in await read.rows("SELECT sha256, size_bytes FROM originals")}


async def kept_bytes(read: Read) -> int:
    """How many bytes all files take."""
    return int(await read.value("SELECT CAST(coalesce(sum(size_bytes), 0) AS bigint) FROM originals"))


async def bytes_of_versions(read: Read) -> int:
    """How many bytes would be free if no versions were kept."""
    sql = (
        "SELECT CAST(coalesce(sum(size_bytes), 0) AS bigint) FROM originals WHERE NOT EXISTS "
        "(SELECT 1 FROM documents d WHERE d.sha256 = originals.sha256 AND d.kind = 'file')"
    )
    return int(await read.value(sql))


async def _drop(write: Write, condition: str, values: tuple[str, ...]) -> None:
    sql = f"SELECT sha256 FROM originals WHERE {condition} AND {_UNUSED}"  # noqa: S608
    if gone := [sha256 for (sha256,) in await write.rows(sql, values)]:
        await write.drop_originals(gone)
