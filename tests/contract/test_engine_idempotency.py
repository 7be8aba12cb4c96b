"""What `Idempotency-Key` promises where one needs two callers, half a request, or a restart to see it."""

from __future__ import annotations

import asyncio

from kb_verify.files import END, file_part
from tests.contract.conftest import Start
from tests.contract.raw import Raw
from tests.support.engine_http import Caller, answered, problem

KEY = {"Idempotency-Key": "key-1"}
JOBS = "/api/v1/jobs"


async def test_a_key_belongs_to_its_credential(kb: Caller) -> None:
    """Another caller's same key is another request."""
    one = await kb.http.post(JOBS, json={"text": "granite"}, headers={**KEY, "Authorization": "Bearer a"})
    two = await kb.http.post(JOBS, json={"text": "basalt"}, headers={**KEY, "Authorization": "Bearer b"})
    assert answered(one, 202)["id"] != answered(two, 202)["id"]


async def test_a_second_request_during_the_first_is_in_progress(kb: Caller) -> None:
    """The first one's upload is held open; the second is told when to ask again."""
    body = file_part() + END
    async with Raw(kb.http.base_url.port) as raw, asyncio.timeout(20):
        await raw.begin(len(body), "Idempotency-Key: key-1", "Connection: close")
        await raw.write(body[:80])
        response = await kb.http.post(JOBS, json={"text": "granite"}, headers=KEY)
        problem(response, "in_progress")
        assert int(response.headers["Retry-After"]) >= 1
        await raw.write(body[80:])
        assert b" 202 " in await raw.reader.readline()


async def test_a_retry_after_a_restart_answers_as_it_did(start: Start) -> None:
    """The answer is kept with the effect."""
    kb = await start()
    first = answered(await kb.http.post(JOBS, json={"text": "granite"}, headers=KEY), 202)
    await kb.completed(first)
    await start.stop()
    again = await start()
    assert answered(await again.http.post(JOBS, json={"text": "granite"}, headers=KEY), 202) == first
