"""What is kept of documents as they were: how much, and what is said where nothing is."""

from __future__ import annotations

from collections.abc import Sequence

from kb_contracts.api.errors import EngineError

KEPT_VERSIONS = 20
"""Of one document, unless an engine is set otherwise: the oldest go first."""
KEPT_DAYS = 30.0
"""Of every version, likewise."""


def check_version_kept(version: int, kept: Sequence[int]) -> None:
    """Raises EngineError: `version_not_found`, where `version` is none of those that are `kept`."""
    if version in kept:
        return
    numbers = ", ".join(map(str, sorted(kept, reverse=True))) or "none"
    raise EngineError(
        "version_not_found",
        f"Version {version} of this document is not kept; these are: {numbers}. A version is kept when its "
        "content is replaced or removed.",
        parameter="version",
    )
