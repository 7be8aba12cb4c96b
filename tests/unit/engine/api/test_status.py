"""`/status`: reported problems, and the requests that count as a use of the engine."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from kb_engine.app import ENGINE, create_app
from kb_engine.settings import EngineSettings
from tests.support.eventually import eventually_async

Client = TestClient[web.Request, web.Application]


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    """An engine whose last scan found damage."""
    settings = EngineSettings(home=tmp_path, embedder="hash")
    settings.folder.mkdir()
    settings.scan_position.write_text('{"looked_at": 9e9, "hurt": {"7": "a vector is missing"}}')
    async with TestClient(TestServer(await create_app(settings))) as client:
        yield client


async def issues(client: Client) -> list[str]:
    found: list[str] = (await (await client.get("/api/v1/status")).json())["issues"]
    return found


async def test_damage_and_removals_for_room_are_issues(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = await eventually_async(lambda: issues(client), what="what the scan has found")
    assert seen == ["Document 7 is damaged: a vector is missing. Stop the engine and run kb check --repair"]
    store = client.app[ENGINE].store
    monkeypatch.setattr(type(store), "issues", ["The disk was full"])
    assert await issues(client) == ["The disk was full", *seen]


async def status_with(settings: EngineSettings, full: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the status of an engine while the disk of this folder has a mebibyte free, and others more."""
    usage = shutil.disk_usage(settings.home)
    patch.setattr(shutil, "disk_usage", lambda of: usage._replace(free=1 << (20 if Path(of) == full else 40)))
    async with TestClient(TestServer(await create_app(settings))) as client:
        status: dict[str, Any] = await (await client.get("/api/v1/status")).json()
        return status


@pytest.mark.parametrize("full", ["engine", "other"])
async def test_the_fuller_disk_of_base_and_uploads_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    settings = EngineSettings(home=tmp_path, store=f"sqlite:{tmp_path}/other/kb.db", embedder="hash")
    status = await status_with(settings, tmp_path / full, monkeypatch)
    assert status["storage"]["free_bytes"] == 1 << 20
    assert status["issues"] == [f"The disk of {tmp_path / full} is nearly full: {1 << 20} bytes are free"]


async def test_the_disk_of_a_base_behind_a_symbolic_link_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, real = EngineSettings(home=tmp_path, embedder="hash"), tmp_path / "real"
    for folder in (settings.folder, real):
        folder.mkdir()
    settings.database.symlink_to(real / "kb.sqlite")
    status = await status_with(settings, real, monkeypatch)
    assert (real / "kb.sqlite").is_file()
    assert status["storage"]["free_bytes"] == 1 << 20


@pytest.mark.process
async def test_an_index_that_cannot_be_asked_is_an_issue_until_it_can(tmp_path: Path) -> None:
    """`/status` gives the reason, `/readyz` does not."""
    from tests.support.qdrant import serving  # a second of imports, for this test alone
    from tests.support.qdrant_cores import core_of

    async with serving(core_of("edge")) as qdrant:
        settings = EngineSettings(home=tmp_path, embedder="hash", index="qdrant", parts=(qdrant.settings(),))
        async with TestClient(TestServer(await create_app(settings))) as client:

            async def seen() -> tuple[list[str], list[str]]:
                response = await client.get("/readyz")
                assert response.status == 200
                return await issues(client), (await response.json()).get("issues", [])

            def in_order(found: tuple[list[str], list[str]]) -> bool:
                return found == ([], [])

            await eventually_async(seen, in_order, what="the index")
            qdrant.out_of_service = True
            of_status, of_readiness = await eventually_async(seen, all, what="both issues")
            assert [qdrant.url in each for each in of_status + of_readiness] == [True, False]
            assert all(
                each.startswith("The search index cannot be asked") for each in of_status + of_readiness
            )
            qdrant.out_of_service = False
            await eventually_async(seen, in_order, what="the index again")


async def test_a_search_is_a_use_of_the_engine_and_a_probe_is_not(client: Client) -> None:
    engine = client.app[ENGINE]
    for path in ("/api/v1/status", "/healthz", "/readyz"):
        before = engine.searched_at
        assert (await client.get(path)).status == 200
        assert engine.searched_at == before
    for path in ("/api/v1/search", "/vector/search"):
        before = engine.searched_at
        assert (await client.post(path, json={"query": "granite"})).status == 200
        assert engine.searched_at > before
