"""Which mode a search runs in: `mode` and `fts_only` are two ways to ask for one thing."""

from __future__ import annotations

from kb_contracts.api.errors import EngineError
from kb_contracts.api.models import Mode, SearchRequest


def contradict(mode: Mode | None, fts_only: bool | None) -> bool:
    """Whether both are given and exclude each other."""
    return mode is not None and fts_only is not None and fts_only != (mode == "fts")


def mode_of(request: SearchRequest) -> Mode:
    """The mode that `mode` and `fts_only` ask for together.

    Raises:
        EngineError: `contradiction`.
    """
    if contradict(request.mode, request.fts_only):
        raise EngineError(
            "contradiction",
            f"fts_only {str(request.fts_only).lower()} and mode {request.mode!r} exclude each other; "
            "send one of the two.",
            parameter="fts_only",
        )
    return "fts" if request.fts_only else request.mode or "hybrid"
