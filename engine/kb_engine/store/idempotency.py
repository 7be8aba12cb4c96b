"""Retried mutations are recognised: the answer is kept in the transaction of the effect, for 24 hours."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import apsw
import msgspec

from kb_engine.store import rules
from kb_engine.store.connection import row
from kb_engine.store.port import Idempotency
from kb_engine.store.write import Write

A = TypeVar("A", bound=msgspec.Struct)


def once(write: Write, idempotency: Idempotency | None, answer: type[A], effect: Callable[[], A]) -> A:
    """Do the effect, unless it was done under this key: then its answer from then.

    Raises:
        EngineError: `idempotency_mismatch` where the key came with another request.
    """
    if idempotency is None:
        return effect()
    earlier = stored(write.db, idempotency, write.now)
    if earlier is not None:
        return msgspec.json.decode(earlier, type=answer)
    done = effect()
    _store(write, idempotency, msgspec.json.encode(done))
    return done


def stored(db: apsw.Connection, idempotency: Idempotency, now: str) -> bytes | None:
    """The answer under this key, while it is kept. Raises `idempotency_mismatch`."""
    found = row(
        db,
        "SELECT fingerprint, answer FROM idempotency "
        "WHERE credential = ? AND operation = ? AND key = ? AND created_at > ?",
        (idempotency.credential, idempotency.operation, idempotency.key, rules.answers_kept_since(now)),
    )
    if found is None:
        return None
    rules.same_request(idempotency, found[0])
    return bytes(found[1])


def _store(write: Write, idempotency: Idempotency, answer: bytes) -> None:
    write.db.execute("DELETE FROM idempotency WHERE created_at <= ?", (rules.answers_kept_since(write.now),))
    write.db.execute(
        "INSERT INTO idempotency (credential, operation, key, fingerprint, answer, created_at) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        (
            idempotency.credential,
            idempotency.operation,
            idempotency.key,
            idempotency.fingerprint,
            answer,
            write.now,
        ),
    )
