"""`/documents/{id}/picture`: the cache of pictures, behind the access scope, and its bounds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import FormData, web
from aiohttp.test_utils import TestClient, TestServer

from kb_contracts.access.reach import ACCESS, Access, Reach, access_header
from kb_engine import pictures
from kb_engine.app import ENGINE, create_app
from kb_engine.settings import EngineSettings
from kb_readers.memory import MemoryBudget
from kb_readers.model import DEFAULT_LIMITS, Picture
from kb_readers.readers import draw_file
from kb_verify.files import pdf
from tests.support.eventually import eventually_async
from tests.support.patience import ANSWER_SECONDS

pytestmark = pytest.mark.process

Client = TestClient[web.Request, web.Application]


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    settings = EngineSettings(home=tmp_path, embedder="hash", keep_originals=True)
    async with TestClient(TestServer(await create_app(settings))) as client:
        yield client


async def add(client: Client, name: str, data: bytes, tag: str = "collection:mine") -> int:
    form = FormData({"tags": json.dumps([tag])})
    form.add_field("file", data, filename=name)
    job = await (await client.post("/api/v1/jobs", data=form)).json()

    async def document() -> int | None:
        found: int | None = (await (await client.get(f"/api/v1/jobs/{job['id']}")).json()).get("document_id")
        return found

    number = await eventually_async(document, what="the document")
    assert number is not None
    return number


async def picture(client: Client, number: int, reach: Reach | None = None) -> tuple[int, str]:
    headers = {ACCESS: access_header(Access(rights=frozenset(["read"]), reach=reach))}
    response = await client.get(f"/api/v1/documents/{number}/picture", headers=headers)
    answer = await response.json()
    return response.status, answer.get("content") or answer["code"]


async def test_a_drawn_page_is_kept_until_a_document_changes_and_never_leaves_the_scope(
    client: Client,
) -> None:
    one, two = [await add(client, "a.pdf", pdf([text])) for text in ("granite", "basalt")]
    mine, others = Reach(frozenset(["collection:mine"])), Reach(frozenset(["collection:others"]))
    kept = client.app[ENGINE].pictures
    first = await picture(client, one, mine)
    assert (first[0], kept.count) == (200, 1)
    assert await picture(client, one, others) == (404, "document_not_found")
    assert await picture(client, one) == first
    assert (await picture(client, two))[0] == 200
    assert kept.count == 2
    restricted = await client.delete(f"/api/v1/documents/{one}/tags/collection:mine")
    assert restricted.status == 200
    assert await picture(client, one, mine) == (404, "document_not_found")
    assert kept.count == 0


async def test_pictures_that_take_too_much_memory_are_dropped_the_oldest_first(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = [await add(client, "a.pdf", pdf([text])) for text in ("granite", "basalt", "quartz")]
    monkeypatch.setattr(pictures, "_CACHE_BYTES", 0)
    assert [(await picture(client, number))[0] for number in numbers] == [200] * 3
    assert client.app[ENGINE].pictures.count == 0


async def test_a_request_that_finds_no_turn_or_no_memory_is_refused_and_the_next_is_served(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, engine = await add(client, "a.pdf", pdf(["granite"])), client.app[ENGINE]
    monkeypatch.setattr(pictures, "_WHOLE_SECONDS", 1.0)
    for limit, drawing in (
        (0, engine.pictures),
        (1, pictures.Pictures(engine.store, DEFAULT_LIMITS, MemoryBudget(0))),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(pictures, "_MOST_REQUESTS", limit)
            patch.setattr(engine, "pictures", drawing)
            for _ in range(2):
                assert await picture(client, number) == (503, "not_ready")
    monkeypatch.setattr(pictures, "_WHOLE_SECONDS", ANSWER_SECONDS)
    assert (await picture(client, number))[0] == 200


async def test_a_page_that_many_ask_for_is_drawn_once_a_turn(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, drawn = await add(client, "a.pdf", pdf(["granite"])), []

    async def counted(*given: Any, **options: Any) -> Picture:
        drawn.append(given)
        return await draw_file(*given, **options)

    monkeypatch.setattr(pictures, "draw_file", counted)
    found = await asyncio.gather(*(picture(client, number) for _ in range(8)))
    assert ({status for status, _ in found}, len(drawn) <= 2) == ({200}, True)
