"""Retried mutations: the answer given once under a key is the answer that a retry gets."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from kb_contracts.errors import EngineError

KEPT_MICROSECONDS = 24 * 3600 * 1_000_000
"""How long an answer is kept, in virtual time."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How a retry is recognised: `key` within `credential` and `operation`.

    `asked` is a digest of what the request asks for; under one key it is always the same.
    """

    credential: str
    operation: str
    key: str
    asked: str


@dataclass(frozen=True, slots=True)
class _Given:
    asked: str
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
        if given.asked != retry.asked:
            raise EngineError(
                "idempotency_mismatch",
                "This Idempotency-Key came with another request before. Send a new key with a new request.",
            )
        return given.answer

    def keep(self, retry: Retry, answer: msgspec.Struct, now: int) -> None:
        """Remember an answer."""
        self._given[_place(retry)] = _Given(retry.asked, answer, now)

    def _forget_before(self, moment: int) -> None:
        while self._given and (oldest := next(iter(self._given.items())))[1].at <= moment:
            del self._given[oldest[0]]


def _place(retry: Retry) -> tuple[str, str, str]:
    return (retry.credential, retry.operation, retry.key)
