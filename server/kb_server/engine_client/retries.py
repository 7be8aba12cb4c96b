"""When to send a call again, and after how long: exponential back-off with full jitter, bounded twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kb_server.engine_client.errors import EngineFault


def jittered(made: int, *, base: float, cap: float, random: Callable[[], float]) -> float:
    """Seconds to wait after `made` attempts: evenly from 0 to `base * 2**(made - 1)`, at the most `cap`."""
    return random() * min(cap, base * 2.0 ** (made - 1))


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """At the most `attempts` calls, none begun later than `deadline` seconds after the first.

    A wait is `jittered` between `base` and `cap`, and never less than the engine's own `Retry-After`.
    Seconds throughout.
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
        wait = max(jittered(made, base=self.base, cap=self.cap, random=random), fault.retry_after or 0.0)
        return wait if elapsed + wait < self.deadline else None
