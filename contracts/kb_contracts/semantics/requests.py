"""Records of requests: recognition of retries, and rate limits of users.

A retry of a mutation is recognised by its idempotency key, and two requests of one key never run at once.
RAGler's operations have rate limits for each user, in fixed windows.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from kb_contracts.api.errors import EngineError
from kb_contracts.api.models import FileFields
from kb_contracts.api.ragler import LIMITS, WINDOW_SECONDS

KEPT_SECONDS = 24 * 3600
"""Retention of a mutation's response for its retries, in seconds."""

_RETRY_SECONDS = 1.0
MAX_WINDOWS = 20_000
"""Maximum number of windows, about 10 MB: beyond it the oldest is dropped early."""

_WINDOW = WINDOW_SECONDS * 1_000_000


def request_fingerprint(
    path: Mapping[str, Any],
    query: Any,
    body: Any,
    if_match: int | None,
    file: tuple[str, str, FileFields] | None = None,
) -> str:
    """Return the SHA-256 of a request's parameters; of a `file`, of its name, its SHA-256 and its fields.

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


@dataclass(frozen=True, slots=True)
class Idempotency:
    """The identity of a request that may be retried: `key` within `credential` and `operation`.

    `fingerprint` is a SHA-256 over the content of the request. A mutation repeated with the same key and
    fingerprint returns the first response; with a different fingerprint it raises `idempotency_mismatch`. The
    response is stored in the transaction of the effect and kept for 24 hours.
    """

    key: str
    credential: str
    operation: str
    fingerprint: str


def check_same_request(key: str, fingerprint: str, kept: str) -> None:
    """Raises EngineError: `idempotency_mismatch`, if the key was used for another request."""
    if fingerprint != kept:
        raise EngineError(
            "idempotency_mismatch",
            f"The idempotency key {key!r} was used for another request. Use a new key for a new request.",
        )


class KeysInUse:
    """The idempotency keys of the requests in progress."""

    def __init__(self) -> None:
        self._held: set[tuple[str, str, str]] = set()

    @contextmanager
    def hold(self, credential: str, operation: str, key: str | None) -> Iterator[None]:
        """Refuse a second request with the same key while the first one runs; do nothing without a key.
        Raises EngineError: `in_progress`.
        """
        if key is None:
            yield
            return
        request = (credential, operation, key)
        if request in self._held:
            raise EngineError(
                "in_progress",
                "A request with this Idempotency-Key is still running; repeat it to get its response.",
                retry_after=_RETRY_SECONDS,
            )
        self._held.add(request)
        try:
            yield
        finally:
            self._held.discard(request)


def _monotonic() -> int:
    return time.monotonic_ns() // 1000


@dataclass(slots=True)
class _Window:
    start: int
    calls: int = 0


class RateWindows:
    """Counts calls before they are carried out; a refused call does not count.

    `clock` returns microseconds as integers, so that a caller who waits exactly `retry_after` is accepted.
    """

    def __init__(self, clock: Callable[[], int] = _monotonic, max_windows: int = MAX_WINDOWS) -> None:
        self._clock = clock
        self._max_windows = max_windows
        # All windows have the same length, so they end in the order in which they started.
        self._windows: dict[tuple[str, str, str], _Window] = {}

    def __len__(self) -> int:
        return len(self._windows)

    def count(self, operation: str, user: str | None, credential: str) -> None:
        """Count one call of `user`, or of the credential if there is no user.
        Raises EngineError: `rate_limited`, with the remaining seconds.
        """
        now = self._clock()
        while self._windows and now - self._windows[oldest := next(iter(self._windows))].start >= _WINDOW:
            del self._windows[oldest]
        # The kind is part of the key, so that a user's name cannot equal a credential.
        key = (operation, *(("credential", credential) if user is None else ("user", user)))
        if (window := self._windows.get(key)) is None:
            if len(self._windows) >= self._max_windows:
                del self._windows[next(iter(self._windows))]
            window = self._windows[key] = _Window(now)
        if window.calls >= LIMITS[operation]:
            left = math.ceil((window.start + _WINDOW - now) / 1000) / 1000
            raise EngineError(
                "rate_limited",
                f"One user may make {LIMITS[operation]} calls of {operation} in {WINDOW_SECONDS} seconds. "
                f"Try again in {math.ceil(left)} seconds.",
                retry_after=left,
            )
        window.calls += 1
