"""Retention of earlier versions of documents: the defaults, and the refusal if a version is not kept."""

from __future__ import annotations

from collections.abc import Sequence

from kb_contracts.api.errors import EngineError

KEPT_VERSIONS = 20
"""Default number of kept versions of one document; the oldest are removed first."""
KEPT_DAYS = 30.0
"""Default retention of a version, in days."""


def check_version_kept(version: int, kept: Sequence[int]) -> None:
    """Raises EngineError: `version_not_found`, if `version` is not among `kept`."""
    if version in kept:
        return
    numbers = ", ".join(map(str, sorted(kept, reverse=True))) or "none"
    raise EngineError(
        "version_not_found",
        f"Version {version} of this document is not kept; the kept ones are: {numbers}. A version is kept "
        "when its content is replaced or removed.",
        parameter="version",
    )
