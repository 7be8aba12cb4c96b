"""A base with an example of everything, and its search results, for comparison with a copy of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from kb_contracts.api.ragler import collection_id
from tests.support import engines
from tests.support.patience import ANSWER_SECONDS
from tests.unit.cli.conftest import KEY, Kb

EXAMPLES = Path(__file__).parents[3] / "examples/documents"
QUESTIONS = ["how long does a worker bee take from egg to adult", "tides", "loam", "concise", '"green tea"']
NOTE = "\n  The user prefers\r\n\r\n\n\tconcise answers \n"


@contextmanager
def running(home: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Iterator[httpx.Client]:
    with engines.engine(home, api_key=KEY, **settings) as url:
        monkeypatch.setenv("KB_ENGINE_URL", url)
        with httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {KEY}"}, timeout=ANSWER_SECONDS
        ) as http:
            yield http


def fill(kb: Kb, http: httpx.Client) -> None:
    kb("add", str(EXAMPLES), "--collection", "documents", "--tags", "example")
    note = kb.note(
        NOTE, "--collection", "memory", "--tags", "feedback", "--title", "What / the user: prefers"
    )
    kb("updatenote", str(note), NOTE + "!")
    metadata = {"metadata": {"source_type": "wiki", "n": [1, None]}}
    http.put(f"/api/v1/documents/{note}/metadata", json=metadata).raise_for_status()
    described = {"name": "memory", "description": "What users say"}
    http.put(f"/collections/{collection_id('memory')}", json=described).raise_for_status()


def answers(http: httpx.Client) -> list[Any]:
    """Return the search results of each question, with citations and without ids."""
    found = []
    for query in QUESTIONS:
        for mode in ("hybrid", "fts", "vector"):
            request = {"query": query, "mode": mode, "citations": True}
            answer = http.post("/api/v1/search", json=request).raise_for_status().json()
            for result in answer["results"]:
                del result["chunk"]["id"], result["chunk"]["uid"], result["document"]["id"]
            found.append({**answer, "took_ms": 0})
    return found


def check_same(found: list[Any], expected: list[Any]) -> None:
    """Compare search results; scores up to rounding, because databases add numbers in different orders."""
    for one, other in zip(found, expected, strict=True):
        scores = [[result.pop("score") for result in each["results"]] for each in (one, other)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-5)
    assert found == expected


def documents(http: httpx.Client) -> list[Any]:
    listed = http.get("/api/v1/documents", params={"sort_by": "id", "sort_order": "asc"}).json()["documents"]
    for each in listed:
        del each["id"]
        each["tags"].sort()
    return list(listed)
