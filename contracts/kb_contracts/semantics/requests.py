"""What an engine keeps of requests: how a retry is recognised, and how often one user has called.

A mutation is recognised when it is retried, and two of one key never run at once. Of RAGler's operations one
user may call each so often in a fixed window.
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
"""How long the answer of a mutation is kept for its retries."""

_RETRY_SECONDS = 1.0
MAX_WINDOWS = 20_000
"""Windows kept at the most, some 10 MB: beyond it the oldest is forgotten early."""

_WINDOW = WINDOW_SECONDS * 1_000_000


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


def _monotonic() -> int:
    return time.monotonic_ns() // 1000


@dataclass(slots=True)
class _Window:
    start: int
    calls: int = 0


class RateWindows:
    """Counts calls before they are carried out; a refused call does not count.

    `clock` gives microseconds: whole numbers, so that a caller who waits exactly `retry_after` is
    let through.
    """

    def __init__(self, clock: Callable[[], int] = _monotonic, max_windows: int = MAX_WINDOWS) -> None:
        self._clock = clock
        self._max_windows = max_windows
        # All windows are equally long, so that they end in the order in which they started.
        self._windows: dict[tuple[str, str, str], _Window] = {}

    def __len__(self) -> int:
        return len(self._windows)

    def count(self, operation: str, user: str | None, credential: str) -> None:
        """Count one call of `user`, or of the credential where it names no user.

        Raises:
            EngineError: `rate_limited`, with the seconds that are left.
        """
        now = self._clock()
        while self._windows and now - self._windows[oldest := next(iter(self._windows))].start >= _WINDOW:
            del self._windows[oldest]
        # Two kinds, so that no user's name is taken for a credential.
        key = (operation, *(("credential", credential) if user is None else ("user", user)))
        if (window := self._windows.get(key)) is None:
            if len(self._windows) >= self._max_windows:
                del self._windows[next(iter(self._windows))]
            window = self._windows[key] = _Window(now)
        if window.calls >= LIMITS[operation]:
            left = math.ceil((window.start + _WINDOW - now) / 1000) / 1000
            raise EngineError(
                "rate_limited",
                f"One user may call {operation} {LIMITS[operation]} times in {WINDOW_SECONDS} seconds. "
                f"Try again in {math.ceil(left)} seconds.",
                retry_after=left,
            )
        window.calls += 1
