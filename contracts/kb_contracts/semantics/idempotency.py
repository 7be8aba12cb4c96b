"""Retried mutations: how a retry is recognised, and what keeps two of one key from running at once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from kb_contracts.api.errors import EngineError
from kb_contracts.api.models import FileFields

KEPT_SECONDS = 24 * 3600
"""How long the answer of a mutation is kept for its retries."""

_RETRY_SECONDS = 1.0


def request_fingerprint(
    path: Mapping[str, Any],
    query: Any,
    body: Any,
    if_match: int | None,
    file: tuple[str, str, FileFields] | None = None,
) -> str:
    """SHA-256 over a request's parameters; of a `file` its name, its SHA-256 and the fields beside it.

    White space and the order of members in a JSON body do not count.
    """
    parameters = {
        "path": path,
        "query": query,
        "body": body if file is None else file[2],
        "if_match": if_match,
        "file": None if file is None else file[:2],
    }
    return hashlib.sha256(msgspec.json.encode(parameters, order="deterministic")).hexdigest()


def check_same_request(key: str, fingerprint: str, kept: str) -> None:
    """Raises EngineError: `idempotency_mismatch`, where the key was used for another request."""
    if fingerprint != kept:
        raise EngineError(
            "idempotency_mismatch",
            f"The idempotency key {key!r} was used for another request. Use a new key for a new request.",
        )


class KeysInUse:
    """The idempotency keys whose requests are being answered."""

    def __init__(self) -> None:
        self._held: set[tuple[str, str, str]] = set()

    @contextmanager
    def hold(self, credential: str, operation: str, key: str | None) -> Iterator[None]:
        """Keep a second request with the same key out while the first one runs; without a key, nothing.

        Raises:
            EngineError: `in_progress`.
        """
        if key is None:
            yield
            return
        request = (credential, operation, key)
        if request in self._held:
            raise EngineError(
                "in_progress",
                "A request with this Idempotency-Key is still running; repeat it for its answer.",
                retry_after=_RETRY_SECONDS,
            )
        self._held.add(request)
        try:
            yield
        finally:
            self._held.discard(request)
