"""The transactions of repositories on PostgreSQL, and their locks.

Changes of documents are serialized only where they conflict. Each of these locks is held until the end of the
transaction:

    the base, shared    so that operations on the whole base (`clear`, a migration, the switch to another
                        embedder) and changes in flight wait for each other
    its document        the row: the second of two changes of one version sees the result of the first
    its content         an advisory lock by kind, hash and scope: the second of two submissions is a duplicate
    a row of `counters` any free one, so that totals are counted without waiting; a reader sums the rows
    the row of `base`   only if an index follows the log of changes, and as the last statement: changes get
                        generations in the order of their commits, so that a reader never has to go back

Ids come from sequences. They are never reused, but a lower id may be committed after a higher one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from kb_contracts.api.errors import EngineError
from kb_contracts.semantics.requests import Idempotency
from kb_engine.index.port import Vectors
from kb_engine.index.words import AnalysedChunk, Analyser
from kb_engine.store.clock import SteadyClock
from kb_engine.store.port import Bounds, EmbedderIdentity, Prepared, described
from kb_engine.store.postgres.connection import SCHEMA, Db, as_json, changed, from_base, rows, value
from kb_engine.store.postgres.word_order import insert_orders
from kb_engine.store.repository.transaction import Read, Row, Write

_ACCEPTING = 0x6B62_0002
"""Advisory lock for accepting jobs: job numbers follow the order of commits, and the queue limit is kept."""
_CHANGING = 0x6B62_0003
"""Advisory lock of the base: shared for changes of documents, exclusive for changes of the whole base."""
_DESCRIBING = 0x6B62_0004  # advisory lock for describing a collection: names and ids stay unique
BUILDING = 0x6B62_0005  # advisory lock for building the index of vectors, or for preventing that
_KEYS, _CONTENTS, _MEASURES = range(3)
"""Hash seeds, so that keys, contents and measures with equal text have different advisory locks."""
SLICE = 100
"""Number of chunks that are analysed at a time, because the server ends a transaction that sends nothing for
`STOPPED_SECONDS`.
"""
_COPIED = 20_000
"""Maximum number of words in a COPY, for the same reason: a slice of Chinese has up to 200,000."""
_CHUNKS = (
    "id", "uid", "document_id", "position", "text", "page", "heading", "first", "beyond", "tokens", "words",
)  # fmt: skip
_POSTINGS = ("term", "chunk_id", "frequency", "length")
_NAMED = "hashtextextended(?, ?)"
_COUNT = """
UPDATE counters SET chunks = chunks + ?, words = words + ?, generation = generation + ?,
  changes = changes + ?, last_updated = greatest(last_updated, ?)
WHERE slot = (SELECT slot FROM counters ORDER BY slot LIMIT 1 FOR UPDATE SKIP LOCKED)
"""
_COUNT_FIRST = (
    "INSERT INTO counters (chunks, words, generation, changes, last_updated) VALUES (?, ?, ?, ?, ?)"
)
_FOLD = """
WITH taken AS (SELECT * FROM counters FOR UPDATE SKIP LOCKED),
  emptied AS (DELETE FROM counters c USING taken t WHERE c.slot = t.slot)
UPDATE base SET chunks = base.chunks + t.chunks, words = base.words + t.words,
  generation = base.generation + t.generation, changes = base.changes + t.changes,
  last_updated = greatest(base.last_updated, t.last_updated)
FROM (SELECT sum(chunks)::bigint AS chunks, sum(words)::bigint AS words,
  sum(generation)::bigint AS generation, sum(changes)::bigint AS changes,
  max(last_updated) AS last_updated, count(*) AS slots FROM taken) t
WHERE t.slots > 0
"""
_LOG = """
INSERT INTO index_changes (generation, document_id)
SELECT t.changes - ? + o.place, o.id FROM totals t, unnest(?::bigint[]) WITH ORDINALITY AS o (id, place)
"""


class PostgresRead(Read):
    on_thread = False
    sources = "ARRAY(SELECT s.source_path FROM document_sources s WHERE s.document_id = d.id ORDER BY s.id)"
    tags = "ARRAY(SELECT t.tag FROM document_tags t WHERE t.document_id = d.id ORDER BY t.id)"
    among = "= ANY (?)"
    # The subquery runs once, and its rows are then found by their index.
    selected = "= ANY (ARRAY({}))"
    last_updated = "SELECT last_updated FROM totals"
    generation = "SELECT changes FROM totals"
    # Each token of a chunk counts once in `words`, and at least once in its postings.
    lacking_words = (
        "SELECT EXISTS (SELECT 1 FROM chunks c WHERE c.document_id = ? AND c.words > "
        "(SELECT coalesce(sum(p.frequency), 0) FROM postings p WHERE p.chunk_id = c.id))"
    )
    last_document = "SELECT last_value - CASE WHEN is_called THEN 0 ELSE 1 END FROM document_ids"
    vector = "v.vector::real[]"
    tags_in = "json_array_elements_text(({})::json) AS e (tag)"
    of_version = f"{as_json('v.members')} -> 'tags'"
    tag_in = 'e.tag COLLATE "C"'

    @staticmethod
    def read_list(kept: Iterable[str]) -> list[str]:
        """Unescape each element: codecs are not applied to array elements. Arrays sent to the server must not
        contain NUL.
        """
        return [from_base(text) for text in kept]

    @staticmethod
    def list_value(values: Iterable[Any]) -> list[Any]:
        return list(values)

    @staticmethod
    def vectors_of(stored: Sequence[Any]) -> Vectors:
        return np.array(stored, np.float32).reshape(len(stored), -1 if stored else 0)

    async def size(self) -> int:
        return int(
            await self.value(
                "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c "
                "JOIN pg_namespace n ON n.oid = c.relnamespace "
                "WHERE n.nspname = ? AND c.relkind = 'r' AND c.relname <> 'spool_parts'",
                (SCHEMA,),
            )
        )

    async def rows(self, sql: str, values: Sequence[Any] = ()) -> Sequence[Row]:
        return await rows(self.db, sql, values)


class PostgresWrite(PostgresRead, Write):
    """An open write transaction.

    `embedder` is this engine's; once the base is locked, it has the dimensions recorded in the base.
    """

    for_update = " FOR UPDATE"
    skip_locked = " FOR UPDATE SKIP LOCKED"
    abandoned = " AND lease_until < clock_timestamp()"
    no_lease = "lease = NULL, lease_until = NULL"
    forget_answers = (
        "DELETE FROM idempotency WHERE ctid = ANY (ARRAY("
        "SELECT ctid FROM idempotency WHERE created_at <= ? FOR UPDATE SKIP LOCKED))"
    )
    ping = "INSERT INTO pings (at) VALUES (?) ON CONFLICT (one) DO UPDATE SET at = EXCLUDED.at"

    def __init__(
        self,
        db: Db,
        clock: SteadyClock,
        bounds: Bounds,
        *,
        embedder: EmbedderIdentity,
        layout: int,
        lease_seconds: float,
        logs_changes: bool,
    ) -> None:
        super().__init__(db, clock, bounds)
        self.embedder = embedder
        self.kept_leases: set[str] = set()
        self.dropped_leases: set[str] = set()
        self._layout = layout
        self._lease_seconds = lease_seconds
        self._logs_changes = logs_changes
        self._holds_base = False
        self._touched: list[int | None] = []
        self._chunks = self._words = self._states = 0

    def begin_next(self) -> None:
        """Begin the next operation of the transaction, with a time of its own."""
        vars(self).pop("now", None)

    @property
    def lease_end(self) -> tuple[str, Sequence[Any]]:
        return "lease_until = clock_timestamp() + make_interval(secs => ?), ", (self._lease_seconds,)

    def keep_lease(self, lease: str) -> None:
        self.kept_leases.add(lease)

    def drop_lease(self, lease: str) -> None:
        self.dropped_leases.add(lease)

    async def changed(self, sql: str, values: Sequence[Any] = ()) -> int:
        return await changed(self.db, sql, values)

    async def hold_queue(self) -> None:
        await rows(self.db, "SELECT pg_advisory_xact_lock(?)", (_ACCEPTING,))

    async def hold_key(self, idempotency: Idempotency) -> None:
        name = (idempotency.credential, idempotency.operation, idempotency.key)
        await self._lock(f"SELECT pg_advisory_xact_lock({_NAMED})", name, _KEYS)

    async def hold_content(self, kind: str, sha256: str, dedup_scope: str) -> None:
        await self._lock(f"SELECT pg_advisory_xact_lock({_NAMED})", (kind, sha256, dedup_scope), _CONTENTS)

    async def try_measures(self, work: str) -> bool:
        return bool(await self._lock(f"SELECT pg_try_advisory_xact_lock({_NAMED})", (work,), _MEASURES))

    async def _lock(self, sql: str, name: Sequence[str], seed: int) -> Any:
        return await value(self.db, sql, ("\x1f".join(name), seed))

    async def hold_document(self, document_id: int) -> bool:
        await rows(self.db, "SELECT FROM documents WHERE id = ? FOR UPDATE", (document_id,))
        return True

    async def hold_descriptions(self) -> None:
        await self.hold_base()
        await rows(self.db, "SELECT pg_advisory_xact_lock(?)", (_DESCRIBING,))

    async def keep_file(self, name: str) -> None:
        await rows(self.db, "UPDATE spool_files SET accepted = true WHERE name = ?", (name,))

    async def keep_original(self, sha256: str, size: int, name: str) -> None:
        await self.keep_file(name)
        earlier = "DELETE FROM spool_files WHERE name = (SELECT file FROM originals WHERE sha256 = ?)"
        await rows(self.db, f"{earlier} AND name <> ?", (sha256, name))
        await rows(
            self.db,
            "INSERT INTO originals (sha256, size_bytes, file) VALUES (?, ?, ?) "
            "ON CONFLICT (sha256) DO NOTHING",
            (sha256, size, name),
        )

    async def drop_originals(self, hashes: Sequence[str]) -> None:
        files = "SELECT file FROM originals WHERE sha256 = ANY (?::text[])"
        await rows(self.db, f"DELETE FROM spool_files WHERE name = ANY (ARRAY({files}))", (hashes,))  # noqa: S608

    async def drop_files(self, names: Sequence[str]) -> None:
        unused = "name = ANY (?::text[]) AND NOT EXISTS (SELECT FROM originals WHERE file = name)"
        await rows(self.db, f"DELETE FROM spool_files WHERE {unused}", (names,))  # noqa: S608

    async def hold_base(self, *, alone: bool = False) -> None:
        """Lock the base. Raises `not_ready` if it has a different embedder or a later layout by now."""
        if self._holds_base:
            return
        await lock_base(self.db, shared=not alone)
        # Separate statements, because the statement of the lock does not see changes committed while it
        # waited.
        await expect_layout(self.db, self._layout)
        self.embedder = expect_embedder(self.embedder, await _stored_embedder(self.db))
        self._holds_base = True

    async def next_document(self) -> int:
        return int(await value(self.db, "SELECT nextval('document_ids')"))

    async def continue_from(self, last_document: int, generation: int) -> None:
        if await value(self.db, self.last_document) < last_document:
            await value(self.db, "SELECT setval('document_ids', ?)", (last_document,))
        more = "UPDATE base SET changes = base.changes + greatest(0, ? - t.changes) FROM totals t"
        await rows(self.db, more, (generation,))

    async def touch_base(self, document_id: int | None) -> None:
        self._touched.append(document_id)

    async def insert_content(self, document_id: int, title: str, prepared: Prepared) -> None:
        """Store the chunks of a document. Raises `not_ready` if the base has vectors of another length."""
        if not prepared.chunks:
            return
        dimensions = prepared.vectors.shape[1]
        if self.embedder.dimensions:
            expect_length(self.embedder, dimensions)
        else:
            await self._bind(dimensions)
        numbers, words = "SELECT nextval('chunk_ids') FROM generate_series(1, ?)", 0
        all_ids = [number for (number,) in await rows(self.db, numbers, (len(prepared.chunks),))]
        for first in range(0, len(all_ids), SLICE):
            part = slice(first, first + SLICE)
            ids, chunks, vectors = all_ids[part], prepared.chunks[part], prepared.vectors[part]
            texts = [(chunk.heading, chunk.text) for chunk in chunks]
            analysed = await analysed_words(title, texts, prepared.language)
            await self.db.copy_records_to_table(
                "chunks",
                columns=_CHUNKS,
                records=[
                    (*c.row(i, document_id, place), found.length)
                    for place, (i, c, found) in enumerate(zip(ids, chunks, analysed, strict=True), first)
                ],
            )
            await insert_postings(self.db, ids, analysed)
            await insert_orders(self.db, ids, title, texts)
            await self.db.executemany(
                "INSERT INTO vectors (chunk_id, document_id, vector) VALUES ($1, $2, $3::real[]::vector)",
                (
                    (chunk_id, document_id, vector)
                    for chunk_id, vector in zip(ids, vectors.tolist(), strict=True)
                ),
            )
            words += sum(found.length for found in analysed)
        self._count_chunks(len(all_ids), words)

    async def _bind(self, dimensions: int) -> None:
        """The first vectors of a base set its dimensions; the row lock orders two engines that bring some."""
        self.embedder = expect_embedder(self.embedder, await _stored_embedder(self.db, self.for_update))
        if self.embedder.dimensions:
            expect_length(self.embedder, dimensions)
            return
        self.embedder = replace(self.embedder, dimensions=dimensions)
        await set_embedder(self.db, self.embedder)

    async def remove_content(self, document_id: int) -> None:
        gone = "DELETE FROM chunks WHERE document_id = ? RETURNING id, words"
        found = await rows(self.db, gone, (document_id,))
        ids = [chunk_id for chunk_id, _ in found]
        for table in ("postings", "word_orders"):
            await rows(self.db, f"DELETE FROM {table} WHERE chunk_id = ANY (?::bigint[])", (ids,))  # noqa: S608
        await rows(self.db, "DELETE FROM vectors WHERE document_id = ?", (document_id,))
        await rows(self.db, "DELETE FROM next_vectors WHERE document_id = ?", (document_id,))
        self._count_chunks(-len(found), -sum(words for _, words in found))

    async def remove_all_content(self) -> None:
        # TRUNCATE takes constant time. A search in progress keeps its rows or finds none; documents and
        # chunks are deleted row by row, because their readers must see a consistent snapshot.
        await self.db.execute("TRUNCATE word_orders, postings, next_vectors")
        # The table of vectors cannot be locked exclusively while its index is being built.
        free = await value(self.db, f"SELECT pg_try_advisory_xact_lock({BUILDING})")
        emptying = "TRUNCATE" if free else "DELETE FROM"
        await self.db.execute(f"{emptying} vectors")
        await self.db.execute("DELETE FROM chunks")
        ((chunks, words),) = await rows(self.db, "SELECT chunks, words FROM totals")
        self._count_chunks(-int(chunks), -int(words))

    def _count_chunks(self, chunks: int, words: int) -> None:
        """Count added (or removed) chunks and words, and one new generation for searches."""
        self._chunks += chunks
        self._words += words
        self._states += 1

    async def finish(self) -> None:
        """Update the counters and the log; these are the last statements of the transaction."""
        if not self._touched and not self._states:
            return
        logged = len(self._touched) if self._logs_changes else 0
        last_updated = self.now if self._touched else None
        counted = (self._chunks, self._words, self._states, len(self._touched) - logged, last_updated)
        if not await changed(self.db, _COUNT, counted):
            await rows(self.db, _COUNT_FIRST, counted)
        if logged:
            # The next writer waits for this row, and then continues from the committed number.
            await rows(self.db, "UPDATE base SET changes = changes + ?", (logged,))
            await rows(self.db, _LOG, (logged, self._touched))


async def analysed_words(
    title: str, texts: Sequence[tuple[str | None, str]], language: str | None
) -> list[AnalysedChunk]:
    """Return the terms of chunks, given as heading and text."""
    return await asyncio.to_thread(lambda: list(Analyser().chunks(title, texts, language)))


async def insert_postings(db: Db, chunk_ids: Sequence[int], analysed: Sequence[AnalysedChunk]) -> None:
    """Insert the words of chunks that are not indexed yet."""
    postings = (
        (term, chunk_id, frequency, words.length)
        for chunk_id, words in zip(chunk_ids, analysed, strict=True)
        for term, frequency in Counter(words.terms).items()
    )
    while part := list(islice(postings, _COPIED)):
        await db.copy_records_to_table("postings", columns=_POSTINGS, records=part)


async def fold_counters(read: Read) -> None:
    """Add the counters to the row of `base`, where engines of earlier layouts read the totals."""
    await rows(read.db, _FOLD)


async def layout_version(db: Db) -> int:
    """Return the number of the last migration, which a later engine may have run."""
    return int(await value(db, "SELECT version FROM layout"))


async def lock_base(db: Db, *, shared: bool) -> None:
    """Lock the base until the transaction ends: shared against changes of the whole base, else against all
    changes.
    """
    suffix = "_shared" if shared else ""
    await rows(db, f"SELECT pg_advisory_xact_lock{suffix}(?)", (_CHANGING,))


async def _stored_embedder(db: Db, held: str = "") -> EmbedderIdentity:
    ((name, dimensions),) = await rows(db, f"SELECT embedder, dimensions FROM base{held}")  # noqa: S608
    return EmbedderIdentity.noted(name, dimensions)


async def set_embedder(db: Db, embedder: EmbedderIdentity) -> None:
    """Record the embedder of the vectors in the base."""
    await rows(db, "UPDATE base SET embedder = ?, dimensions = ?", (embedder.note, embedder.dimensions))


async def expect_layout(db: Db, known: int) -> None:
    """Raise `not_ready` if a later engine has migrated the base, because this one does not know the new
    layout.
    """
    if await layout_version(db) > known:
        raise EngineError(
            "not_ready",
            "A newer engine has taken over the base and changed its layout. Stop this engine, "
            "or start it again in that version.",
            retry_after=60.0,
        )


def expect_embedder(wanted: EmbedderIdentity, stored: EmbedderIdentity) -> EmbedderIdentity:
    """Return the embedder of the base. Raises `not_ready` if it differs: vectors of two embedders are never
    mixed.
    """
    if not wanted.fits(stored):
        raise _of_another(f"the embedder {described(stored)}, and this engine was started with {wanted.note}")
    return stored


def expect_length(stored: EmbedderIdentity, found: int) -> None:
    """Raise `not_ready` unless the length fits: vectors of different lengths cannot be compared."""
    if found != stored.dimensions:
        raise _of_another(f"{described(stored)}, and the embedder of this engine gives vectors of {found}")


def _of_another(what: str) -> EngineError:
    return EngineError(
        "not_ready",
        f"The base is filled by {what}. Start this engine again with the embedder of the base.",
        retry_after=60.0,
    )
