"""What updates of notes do in this engine where one needs a restart, or a long note before, to see it."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from tests.contract.conftest import Start
from tests.support.engine_http import LONG, Caller, Json, answered, problem

KEY = {"Idempotency-Key": "key-1"}


async def patch(kb: Caller, number: int, text: str, wait: float, **more: Any) -> httpx.Response:
    """Another text for a note."""
    return await kb.http.patch(
        f"/api/v1/notes/{number}", json={"text": text}, params={"wait": wait}, headers=KEY, **more
    )


async def update(kb: Caller, number: int, text: str) -> Json:
    """The job of an update that waits behind a long note."""
    await kb.started(await kb.submit(LONG))
    return answered(await patch(kb, number, text, wait=0), 202)


async def test_an_accepted_update_survives_a_restart(start: Start) -> None:
    """It is done once, and its key has the answer."""
    kb = await start()
    number = await kb.note("granite")
    job = await update(kb, number, "basalt")
    await start.stop()
    again = await start()
    assert (await again.ended(job))["status"] == "completed"
    for _ in range(2):
        note = answered(await patch(again, number, "basalt", wait=30))
        assert (note["id"], note["version"], note["title"]) == (number, 2, "basalt")
    assert (await again.document(number))["version"] == 2


async def test_who_waits_longer_than_another_has_the_document(kb: Caller) -> None:
    """How long the caller waits is no part of what it asks for under its key."""
    number = await kb.note("granite")
    job = await update(kb, number, "basalt")
    assert answered(await patch(kb, number, "basalt", wait=30))["version"] == 2
    assert (await kb.job(job["id"]))["status"] == "completed"


async def test_who_waits_hears_that_the_note_was_deleted(kb: Caller) -> None:
    number = await kb.note("granite")
    job = await update(kb, number, "basalt")
    waiting = asyncio.create_task(patch(kb, number, "basalt", wait=30))
    answered(await kb.http.delete(f"/api/v1/documents/{number}"))
    problem(await waiting, "document_not_found")
    assert (await kb.job(job["id"]))["error"]["code"] == "document_not_found"
