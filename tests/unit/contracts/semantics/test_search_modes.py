"""Which mode `mode` and `fts_only` ask for together."""

from __future__ import annotations

import pytest

from kb_contracts.api.errors import EngineError
from kb_contracts.api.models import Mode, SearchRequest
from kb_contracts.semantics.search import mode_of


@pytest.mark.parametrize(
    ("mode", "fts_only", "expected"),
    [
        (None, None, "hybrid"),
        (None, True, "fts"),
        (None, False, "hybrid"),
        ("fts", True, "fts"),
        ("vector", False, "vector"),
        ("vector", None, "vector"),
        ("fts", None, "fts"),
    ],
)
def test_either_decides_and_both_may_agree(mode: Mode | None, fts_only: bool | None, expected: Mode) -> None:
    assert mode_of(SearchRequest(query="x", mode=mode, fts_only=fts_only)) == expected


@pytest.mark.parametrize(("mode", "fts_only"), [("vector", True), ("hybrid", True), ("fts", False)])
def test_both_may_not_contradict_each_other(mode: Mode, fts_only: bool) -> None:
    with pytest.raises(EngineError) as refused:
        mode_of(SearchRequest(query="x", mode=mode, fts_only=fts_only))
    assert (refused.value.code, refused.value.members["parameter"]) == ("contradiction", "fts_only")
