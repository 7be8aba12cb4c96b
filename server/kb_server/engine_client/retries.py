"""When to send a call again, and after how long: exponential back-off with full jitter, bounded twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kb_server.engine_client.errors import EngineFault


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """At the most `attempts` calls, none begun later than `deadline` seconds after the first.

    The n-th wait is drawn evenly from 0 to `base * 2**n`, at the most `cap`; never less than the engine's
    own `Retry-After`. Seconds throughout.
    """

    attempts: int = 4
    deadline: float = 20.0
    base: float = 0.1
    cap: float = 2.0

    def delay(
        self, fault: EngineFault, *, made: int, elapsed: float, random: Callable[[], float]
    ) -> float | None:
        """Seconds to wait before the next attempt, after `made` of them; None where there is none."""
        if not fault.transient or made >= self.attempts:
            return None
        jittered = random() * min(self.cap, self.base * 2.0 ** (made - 1))
        wait = max(jittered, fault.retry_after or 0.0)
        return wait if elapsed + wait < self.deadline else None
