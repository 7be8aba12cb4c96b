"""Retried mutations: the answer given once under a key is the answer that a retry gets, one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import msgspec

from kb_contracts.api.errors import EngineError
from kb_contracts.api.operations import IDEMPOTENCY_KEY

KEPT_MICROSECONDS = 24 * 3600 * 1_000_000
"""How long an answer is kept, in virtual time."""

_RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Retry:
    """How a retry is recognised: `key` within `credential` and `operation`.

    `fingerprint` is a digest of the request's parameters; under one key it is always the same.
    """

    credential: str
    operation: str
    key: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class _Given:
    fingerprint: str
    answer: msgspec.Struct
    at: int


@dataclass(slots=True)
class Answers:
    """The answers of mutations that were done, oldest first."""

    _given: dict[tuple[str, str, str], _Given] = field(default_factory=dict)

    def copy(self) -> Answers:
        """The same answers, kept apart from here on."""
        return Answers(dict(self._given))

    def given(self, retry: Retry, now: int) -> msgspec.Struct | None:
        """What was answered under this key, None where nothing was.

        Raises:
            EngineError: `idempotency_mismatch`, where the key came with another request.
        """
        self._forget_before(now - KEPT_MICROSECONDS)
        given = self._given.get(_place(retry))
        if given is None:
            return None
        if given.fingerprint != retry.fingerprint:
            raise EngineError(
                "idempotency_mismatch",
                "This Idempotency-Key came with another request before. Send a new key with a new request.",
            )
        return given.answer

    def keep(self, retry: Retry, answer: msgspec.Struct, now: int) -> None:
        """Remember an answer."""
        self._given[_place(retry)] = _Given(retry.fingerprint, answer, now)

    def settle(self, retry: Retry, answer: msgspec.Struct | None) -> None:
        """Another answer from here on, since its job has ended; None: it failed, and the key is free."""
        place = _place(retry)
        if answer is None:
            self._given.pop(place, None)
        elif (given := self._given.get(place)) is not None:
            self._given[place] = replace(given, answer=answer)

    def _forget_before(self, moment: int) -> None:
        while self._given and (oldest := next(iter(self._given.items())))[1].at <= moment:
            del self._given[oldest[0]]


@dataclass(slots=True)
class KeysInUse:
    """The idempotency keys whose requests are on their way."""

    _held: set[tuple[str, str, str]] = field(default_factory=set)

    @contextmanager
    def hold(self, operation: str, headers: Mapping[str, str]) -> Iterator[EngineError | None]:
        """Keep a request's key while it is answered; `in_progress`, where it is kept already."""
        mark = (headers.get("Authorization", ""), operation, headers.get(IDEMPOTENCY_KEY, ""))
        if mark in self._held:
            yield EngineError(
                "in_progress",
                "A request with this Idempotency-Key is still running.",
                retry_after=_RETRY_SECONDS,
            )
            return
        self._held.add(mark)
        try:
            yield None
        finally:
            self._held.discard(mark)


def _place(retry: Retry) -> tuple[str, str, str]:
    return (retry.credential, retry.operation, retry.key)
