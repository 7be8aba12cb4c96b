"""Every random decision, keyed by what it decides: the same key under the same seed gives the same value.

There is no stream of random numbers, hence no order in which they must be drawn. Whatever else a run
decides, and in whichever order requests arrive, one decision stays as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import blake2b
from uuid import UUID

_ROLL_BYTES = 7
_ROLL_STEPS = 1 << 53  # as many values as a float tells apart between 0 and 1

Part = str | int


@dataclass(frozen=True, slots=True)
class Seeded:
    """Decisions under one seed. A key is a row of strings and integers; ("a", "b") is not ("ab",)."""

    seed: int

    def roll(self, *key: Part) -> float:
        """A number from 0 (inclusive) to 1 (exclusive), evenly spread over keys."""
        return (int.from_bytes(self._digest(key, _ROLL_BYTES), "big") >> 3) / _ROLL_STEPS

    def uniform(self, low: float, high: float, *key: Part) -> float:
        """A number from `low` (inclusive) to `high` (exclusive)."""
        return low + (high - low) * self.roll(*key)

    def lognormal(self, median: float, sigma: float, *key: Part) -> float:
        """A log-normal number: half lie under `median`; `sigma` is the deviation of the logarithm."""
        # Box-Muller; 1 - roll is never 0, so that its logarithm exists.
        radius = math.sqrt(-2.0 * math.log(1.0 - self.roll("radius", *key)))
        return median * math.exp(sigma * radius * math.cos(2.0 * math.pi * self.roll("angle", *key)))

    def uuid(self, *key: Part) -> str:
        """A UUID of version 4 in its usual form."""
        return str(UUID(bytes=self._digest(("uuid", *key), 16), version=4))

    def _digest(self, key: tuple[Part, ...], size: int) -> bytes:
        # Lengths before the parts keep ("a", "bc") and ("ab", "c") apart.
        parts = (str(part).encode("utf-8", "surrogatepass") for part in (self.seed, *key))
        return blake2b(b"".join(b"%d:%b" % (len(part), part) for part in parts), digest_size=size).digest()
