"""Retried mutations: how a request is recognised, and who is still busy with one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from kb_contracts.api.errors import EngineError
from kb_contracts.http.mount import Incoming
from kb_contracts.http.multipart import ReceivedFile
from kb_engine.store.port import Idempotency

_RETRY_SECONDS = 1.0


def idempotency_of(incoming: Incoming, file: ReceivedFile | None = None) -> Idempotency | None:
    """How a retry of this request is recognised; None where it came without a key.

    The fingerprint is a SHA-256 over what was asked for: path, query, body and expected version, of a
    file its fields, name and SHA-256. White space and the order of members in a JSON body do not count.
    """
    if incoming.idempotency_key is None:
        return None
    asked = {
        "path": incoming.path,
        "query": incoming.query,
        "body": incoming.body if file is None else file.fields,
        "if_match": incoming.if_match,
        "file": None if file is None else [file.filename, file.sha256],
    }
    canonical = msgspec.json.encode(asked, order="deterministic")
    return Idempotency(
        key=incoming.idempotency_key,
        credential=incoming.credential,
        operation=incoming.operation.id,
        fingerprint=hashlib.sha256(canonical).hexdigest(),
    )


class KeysInUse:
    """The idempotency keys whose requests are being answered."""

    def __init__(self) -> None:
        self._held: set[tuple[str, str, str]] = set()

    @contextmanager
    def hold(self, incoming: Incoming) -> Iterator[None]:
        """Keep a second request with the same key out while the first one runs.

        Raises:
            EngineError: `in_progress`.
        """
        if incoming.idempotency_key is None:
            yield
            return
        mark = (incoming.credential, incoming.operation.id, incoming.idempotency_key)
        if mark in self._held:
            raise EngineError(
                "in_progress",
                "A request with this Idempotency-Key is still running; ask again for its answer.",
                retry_after=_RETRY_SECONDS,
            )
        self._held.add(mark)
        try:
            yield
        finally:
            self._held.discard(mark)
