"""A search whose query came before has its vector at hand, and reads the base once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest
from aiohttp.test_utils import TestClient, TestServer

from kb_engine.app import create_app
from kb_engine.embed.hashing import HashEmbedder
from kb_engine.index.embedded import vectors
from kb_engine.settings import EngineSettings
from kb_engine.store.sqlite.reading import ReadingStore
from tests.support.eventually import eventually_async


async def test_a_search_with_a_kept_vector_reads_the_base_in_one_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HashEmbedder, "quick_chars", 0)
    monkeypatch.setattr(vectors, "BESIDE_ROWS", 0)
    snapshots: list[apsw.Connection] = []
    snapshot = ReadingStore._snapshot

    def noted(self: ReadingStore, db: apsw.Connection) -> Any:
        snapshots.append(db)
        return snapshot(self, db)

    monkeypatch.setattr(ReadingStore, "_snapshot", noted)
    async with TestClient(
        TestServer(await create_app(EngineSettings(home=tmp_path, embedder="hash")))
    ) as client:
        note = {"text": "bees keep warm", "tags": ["collection:memory"]}
        job = await (await client.post("/api/v1/jobs", json=note)).json()

        async def status() -> str:
            return str((await (await client.get(f"/api/v1/jobs/{job['id']}")).json())["status"])

        await eventually_async(status, lambda seen: seen == "completed", what="the note")
        counts, answers = [], []
        for _ in range(2):
            snapshots.clear()
            answer = await (await client.post("/api/v1/search", json={"query": "warm bees"})).json()
            counts.append(len(snapshots))
            answers.append(answer["results"])
    assert counts == [2, 1]
    assert answers[0] == answers[1] != []
