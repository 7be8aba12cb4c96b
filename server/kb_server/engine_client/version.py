"""Which engines this server works with."""

from __future__ import annotations

import re

from kb_server.engine_client.errors import EngineTooOld

MIN_ENGINE_VERSION = "v3.0.0"
"""The oldest engine whose API has what the tools need."""

_VERSION = re.compile(r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(?![\w.])")


def check_version(version: str) -> None:
    """Refuse an engine that is older than `MIN_ENGINE_VERSION`; a pre-release counts as its release.

    Raises:
        EngineTooOld: names both versions; also where `version` is no version.
    """
    parsed = _parse(version)
    if parsed is None or parsed < (_parse(MIN_ENGINE_VERSION) or ()):
        raise EngineTooOld(
            f"The engine is version {version[:40]!r}; {MIN_ENGINE_VERSION} or later is needed."
        )


def _parse(version: str) -> tuple[int, int, int] | None:
    match = _VERSION.match(version.strip())
    if match is None:
        return None
    major, minor, patch = match.groups(default="0")
    return int(major), int(minor), int(patch)
