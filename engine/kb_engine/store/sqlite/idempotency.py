"""Retried mutations are recognised: the answer is kept in the transaction of the effect, for 24 hours."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import apsw
import msgspec

from kb_contracts.api import models as m
from kb_engine.store import rules
from kb_engine.store.port import Idempotency
from kb_engine.store.sqlite.connection import row
from kb_engine.store.sqlite.write import Write

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


def once_joined(
    write: Write, idempotency: Idempotency, effect: Callable[[], m.Job], find: Callable[[str], m.Job]
) -> m.Job | m.Document:
    """As `once`, where the effect is a job whose outcome will be the answer; until then the job is.

    `find` gives a job by its id.
    """
    found = _find(write.db, idempotency, write.now)
    if found is None:
        job = effect()
        _store(write, idempotency, msgspec.json.encode(job), job.id)
        return job
    answer, job_id = found
    if job_id is not None:
        return find(job_id)
    return msgspec.json.decode(answer, type=m.Document)


def settle(write: Write, job_id: str, answer: msgspec.Struct | None) -> None:
    """Keep the outcome of a job under the keys that wait for it; None: it failed, and they are free."""
    if answer is None:
        write.db.execute("DELETE FROM idempotency WHERE job_id = ?", (job_id,))
    else:
        write.db.execute(
            "UPDATE idempotency SET answer = ?, job_id = NULL WHERE job_id = ?",
            (msgspec.json.encode(answer), job_id),
        )


def stored(db: apsw.Connection, idempotency: Idempotency, now: str) -> bytes | None:
    """The answer under this key, while it is kept. Raises `idempotency_mismatch`."""
    answer, job_id = _find(db, idempotency, now) or (None, None)
    return answer if job_id is None else None


def _find(db: apsw.Connection, idempotency: Idempotency, now: str) -> tuple[bytes, str | None] | None:
    """The answer under this key, and the job whose outcome it will be where that is not known yet."""
    found = row(
        db,
        "SELECT fingerprint, answer, job_id FROM idempotency "
        "WHERE credential = ? AND operation = ? AND key = ? AND created_at > ?",
        (idempotency.credential, idempotency.operation, idempotency.key, rules.answers_kept_since(now)),
    )
    if found is None:
        return None
    fingerprint, answer, job_id = found
    rules.same_request(idempotency, fingerprint)
    return bytes(answer), job_id


def _store(write: Write, idempotency: Idempotency, answer: bytes, job_id: str | None = None) -> None:
    write.db.execute("DELETE FROM idempotency WHERE created_at <= ?", (rules.answers_kept_since(write.now),))
    write.db.execute(
        "INSERT INTO idempotency (credential, operation, key, fingerprint, answer, created_at, job_id) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            idempotency.credential,
            idempotency.operation,
            idempotency.key,
            idempotency.fingerprint,
            answer,
            write.now,
            job_id,
        ),
    )
