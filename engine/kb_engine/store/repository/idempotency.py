"""Retried mutations are recognised, whichever engine they reach.

The answer is kept in the transaction of the effect, for 24 hours.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from kb_contracts.api import models as m
from kb_contracts.semantics.requests import check_same_request
from kb_engine.store import rules
from kb_engine.store.port import Idempotency
from kb_engine.store.repository.transaction import Read, Write

A = TypeVar("A", bound=msgspec.Struct)

# What is there under the key is over a day old, and another engine is just forgetting it.
_KEEP = (
    "INSERT INTO idempotency (credential, operation, key, fingerprint, answer, created_at, job_id) "
    "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (credential, operation, key) DO UPDATE SET "
    "fingerprint = EXCLUDED.fingerprint, answer = EXCLUDED.answer, created_at = EXCLUDED.created_at, "
    "job_id = EXCLUDED.job_id"
)


async def once(
    write: Write,
    idempotency: Idempotency | None,
    answer: type[A],
    effect: Callable[[], Coroutine[Any, Any, A]],
) -> A:
    """Do the effect, unless it was done under this key: then its answer from then.

    A request under the same key that another engine is busy with is waited for.

    Raises:
        EngineError: `idempotency_mismatch` where the key came with another request.
    """
    if idempotency is None:
        return await effect()
    await write.hold_key(idempotency.credential, idempotency.operation, idempotency.key)
    earlier = await stored(write, idempotency)
    if earlier is not None:
        return msgspec.json.decode(earlier, type=answer)
    done = await effect()
    await _store(write, idempotency, msgspec.json.encode(done))
    return done


async def once_joined(
    write: Write,
    idempotency: Idempotency,
    effect: Callable[[], Coroutine[Any, Any, m.Job]],
    find: Callable[[str], Coroutine[Any, Any, m.Job]],
) -> m.Job | m.Document:
    """As `once`, where the effect is a job whose outcome will be the answer; until then the job is.

    `find` gives a job by its id.
    """
    await write.hold_key(idempotency.credential, idempotency.operation, idempotency.key)
    found = await _find(write, idempotency)
    if found is None:
        job = await effect()
        await _store(write, idempotency, msgspec.json.encode(job), job.id)
        return job
    answer, job_id = found
    if job_id is not None:
        return await find(job_id)
    return msgspec.json.decode(answer, type=m.Document)


async def settle(write: Write, job_id: str, answer: msgspec.Struct | None) -> None:
    """Keep the outcome of a job under the keys that wait for it; None: it failed, and they are free.

    The job's row is held, so that nobody joins it any more.
    """
    if answer is None:
        await write.rows("DELETE FROM idempotency WHERE job_id = ?", (job_id,))
    else:
        sql = "UPDATE idempotency SET answer = ?, job_id = NULL WHERE job_id = ?"
        await write.rows(sql, (msgspec.json.encode(answer), job_id))


async def stored(read: Read, idempotency: Idempotency) -> bytes | None:
    """The answer under this key, while it is kept. Raises `idempotency_mismatch`."""
    answer, job_id = await _find(read, idempotency) or (None, None)
    return answer if job_id is None else None


async def _find(read: Read, idempotency: Idempotency) -> tuple[bytes, str | None] | None:
    """The answer under this key, and the job whose outcome it will be where that is not known yet."""
    found = await read.row(
        "SELECT fingerprint, answer, job_id FROM idempotency "
        "WHERE credential = ? AND operation = ? AND key = ? AND created_at > ?",
        (idempotency.credential, idempotency.operation, idempotency.key, rules.answers_kept_since(read.now)),
    )
    if found is None:
        return None
    fingerprint, answer, job_id = found
    check_same_request(idempotency.key, idempotency.fingerprint, fingerprint)
    return bytes(answer), job_id


async def _store(write: Write, idempotency: Idempotency, answer: bytes, job_id: str | None = None) -> None:
    await write.rows(write.dialect.forget_answers, (rules.answers_kept_since(write.now),))
    await write.rows(
        _KEEP,
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
