"""Retried mutations: what the store recognises a retry by."""

from __future__ import annotations

from kb_contracts.http.mount import Incoming
from kb_contracts.http.multipart import ReceivedFile
from kb_contracts.semantics.requests import request_fingerprint
from kb_engine.store.port import Idempotency


def idempotency_of(incoming: Incoming, file: ReceivedFile | None = None) -> Idempotency | None:
    """How a retry of this request is recognised; None where it came without a key."""
    if incoming.idempotency_key is None:
        return None
    return Idempotency(
        key=incoming.idempotency_key,
        credential=incoming.credential,
        operation=incoming.operation.id,
        fingerprint=request_fingerprint(
            incoming.path,
            incoming.query,
            incoming.body,
            incoming.if_match,
            None if file is None else (file.filename, file.sha256, file.fields),
        ),
    )
