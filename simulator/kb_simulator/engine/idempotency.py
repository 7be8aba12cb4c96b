"""Retried mutations: the answer given once under a key is the answer that its retries get."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import msgspec

from kb_contracts.semantics.requests import KEPT_SECONDS, check_same_request


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
        self._forget_before(now - KEPT_SECONDS * 1_000_000)
        given = self._given.get(_place(retry))
        if given is None:
            return None
        check_same_request(retry.key, retry.fingerprint, given.fingerprint)
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


def _place(retry: Retry) -> tuple[str, str, str]:
    return (retry.credential, retry.operation, retry.key)
