"""Which engine is verified, and how far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

KEY_VARIABLE = "KB_VERIFY_API_KEY"
"""Where the suite finds the engine's key: no process list shows the environment."""


@dataclass(frozen=True, slots=True)
class Target:
    """An engine at `url`. `examples` and `seconds` bound the generated requests; all derive from `seed`.

    `headers` go with every request, beside the key: a simulator takes its namespace by one.
    """

    url: str
    api_key: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    seed: int = 7
    examples: int = 15
    seconds: float = 60.0

    @property
    def all_headers(self) -> dict[str, str]:
        """The headers with the key among them."""
        key = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return {**self.headers, **key}
