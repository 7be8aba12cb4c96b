"""A circuit breaker as a state machine without I/O and without a clock of its own.

state       allows                     success   failure                      abandoned
----------  -------------------------  --------  ---------------------------  ---------
closed      yes                        closed    open, at the `threshold`-th  closed
open        after `cooldown`: one      closed    open, from now               open
            call, as half-open
half-open   one more each `cooldown`,  closed    open, from now               open
            lest a long probe hold
            all others up

A failure is an engine that could not be reached or kept silent; an engine that answers, whatever it
answers, is a success.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Circuit(StrEnum):
    """The states of the table above."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(slots=True)
class Breaker:
    """Counts failures in a row and refuses calls for a while when there are too many. Times in seconds."""

    threshold: int = 5
    cooldown: float = 2.0
    state: Circuit = Circuit.CLOSED
    failures: int = 0
    opened_at: float = 0.0

    def allows(self, now: float) -> bool:
        """Whether a call may go out; a True while not closed makes that call a probe."""
        if self.state is Circuit.CLOSED:
            return True
        if self.wait(now) > 0:
            return False
        self.state, self.opened_at = Circuit.HALF_OPEN, now
        return True

    def wait(self, now: float) -> float:
        """Seconds until a probe may go out; 0 where calls may."""
        return max(0.0, self.opened_at + self.cooldown - now) if self.state is not Circuit.CLOSED else 0.0

    def succeeded(self) -> None:
        """The engine answered."""
        self.state, self.failures = Circuit.CLOSED, 0

    def failed(self, now: float) -> None:
        """The engine could not be reached."""
        self.failures += 1
        if self.state is not Circuit.CLOSED or self.failures >= self.threshold:
            self.state, self.opened_at = Circuit.OPEN, now

    def abandoned(self) -> None:
        """The caller left before the outcome: the next call may be the probe."""
        if self.state is Circuit.HALF_OPEN:
            self.state, self.opened_at = Circuit.OPEN, self.opened_at - self.cooldown
