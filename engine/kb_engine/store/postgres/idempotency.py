"""Retried mutations are recognised, whichever engine they reach: see `kb_engine.store.idempotency`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from kb_engine.store import rules
from kb_engine.store.port import Idempotency
from kb_engine.store.postgres.connection import Db, row, rows
from kb_engine.store.postgres.write import Write

A = TypeVar("A", bound=msgspec.Struct)

_FORGET = (
    "DELETE FROM idempotency WHERE ctid = ANY (ARRAY("
    "SELECT ctid FROM idempotency WHERE created_at <= ? FOR UPDATE SKIP LOCKED))"
)
# What is there under the key is over a day old, and another engine is just forgetting it.
_KEEP = (
    "INSERT INTO idempotency (credential, operation, key, fingerprint, answer, created_at) "
    "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (credential, operation, key) DO UPDATE SET "
    "fingerprint = EXCLUDED.fingerprint, answer = EXCLUDED.answer, created_at = EXCLUDED.created_at"
)


async def once(
    write: Write, idempotency: Idempotency | None, answer: type[A], effect: Callable[[], Awaitable[A]]
) -> A:
    """Do the effect, unless it was done under this key: then its answer from then.

    A request under the same key that another engine is busy with is waited for.

    Raises:
        EngineError: `idempotency_mismatch` where the key came with another request.
    """
    if idempotency is None:
        return await effect()
    mark = "\x1f".join((idempotency.credential, idempotency.operation, idempotency.key))
    await rows(write.db, "SELECT pg_advisory_xact_lock(hashtextextended(?, 0))", (mark,))
    earlier = await stored(write.db, idempotency, write.now)
    if earlier is not None:
        return msgspec.json.decode(earlier, type=answer)
    done = await effect()
    await _store(write, idempotency, msgspec.json.encode(done))
    return done


async def stored(db: Db, idempotency: Idempotency, now: str) -> bytes | None:
    """The answer under this key, while it is kept. Raises `idempotency_mismatch`."""
    found = await row(
        db,
        "SELECT fingerprint, answer FROM idempotency "
        "WHERE credential = ? AND operation = ? AND key = ? AND created_at > ?",
        (idempotency.credential, idempotency.operation, idempotency.key, rules.answers_kept_since(now)),
    )
    if found is None:
        return None
    rules.same_request(idempotency, found[0])
    return bytes(found[1])


async def _store(write: Write, idempotency: Idempotency, answer: bytes) -> None:
    await rows(write.db, _FORGET, (rules.answers_kept_since(write.now),))
    await rows(
        write.db,
        _KEEP,
        (
            idempotency.credential,
            idempotency.operation,
            idempotency.key,
            idempotency.fingerprint,
            answer,
            write.now,
        ),
    )
