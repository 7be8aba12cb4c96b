"""Repeated searches are answered with the bytes of the first answer.

A fake must not be what a load test measures. An answer is valid until the documents change.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kb_simulator.engine.state import State

KEPT_BYTES = 32 << 20
"""Of requests and answers together; over it, all are forgotten."""


@dataclass(slots=True)
class SearchCache:
    """The answers since the last change of one state."""

    _answers: dict[bytes, bytes] = field(default_factory=dict)
    _state: State | None = None
    _revision: int = -1
    _bytes: int = 0

    def get(self, state: State, body: bytes) -> bytes | None:
        """What was answered to this body, None where nothing was, or the base has changed since."""
        if state is not self._state or state.revision != self._revision:
            return None
        return self._answers.get(body)

    def keep(self, state: State, body: bytes, answer: object) -> None:
        """Remember an answer that was encoded whole."""
        if not isinstance(answer, bytes):
            return
        if state is not self._state or state.revision != self._revision or self._bytes > KEPT_BYTES:
            self._answers.clear()
            self._state, self._revision, self._bytes = state, state.revision, 0
        self._answers[body] = answer
        self._bytes += len(body) + len(answer)
