"""nginx with the shipped configuration in front of a server: forwarded requests, streams and limits."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from kb_http.certificate import trusting
from tests.protocol.nginx import CONFIGURATION, KEY, NGINX, Site, opened
from tests.support.eventually import eventually_async
from tests.support.mcp_messages import BOTH, call, events, request
from tests.support.patience import ANSWER_SECONDS

MEBIBYTE = 1 << 20

pytestmark = [pytest.mark.process, pytest.mark.skipif(NGINX is None, reason="no nginx on this machine")]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with opened(tmp_path) as site:
        yield site


async def ok(client: httpx.AsyncClient, tool: str, **arguments: Any) -> dict[str, Any]:
    answer = await client.post("/mcp", json=call(tool, **arguments), headers=BOTH)
    result = answer.json()["result"]
    assert not result["isError"], result
    structured: dict[str, Any] = result["structuredContent"]
    return structured


async def test_calls_pass_over_https_and_plain_http_leads_there(site: Site) -> None:
    async with site.client() as client:
        assert (await ok(client, "kb_status"))["documents"]["total"] == 0
        page = await client.get("/", headers={"Accept": "text/html"})
        assert page.headers["Strict-Transport-Security"]
    async with httpx.AsyncClient(verify=False, timeout=ANSWER_SECONDS) as stranger:
        led = await stranger.get(f"{site.plain_url}/mcp?x=1")
    assert (led.status_code, led.headers["Location"]) == (301, f"{site.url}/mcp?x=1")


async def test_the_cookie_of_the_pages_is_for_https_alone(site: Site) -> None:
    async with site.client() as client:
        right = await client.post("/login", files={"key": (None, KEY)}, headers={"Accept": "text/html"})
    assert (right.status_code, "Secure" in right.headers["Set-Cookie"]) == (303, True)


async def test_progress_arrives_while_the_call_goes_on(site: Site) -> None:
    message = call("waiting", meta={"progressToken": "p"})
    async with (
        asyncio.timeout(ANSWER_SECONDS),
        site.client() as client,
        client.stream("POST", "/mcp/own", json=message, headers=BOTH) as response,
    ):
        received, lines = "", response.aiter_lines()
        while not events(received):
            received += f"{await anext(lines)}\n"
        assert events(received)[0]["method"] == "notifications/progress"
        assert not site.waiting.release.is_set()
        site.waiting.release.set()
        received = "".join([f"{line}\n" async for line in lines])
    assert events(received)[-1]["result"]["structuredContent"] == {"done": True}


async def test_a_websocket_is_let_through(site: Site) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    url = f"{site.url.replace('https', 'wss')}/mcp"
    async with connect(url, ssl=trusting(site.pair.certificate), additional_headers=headers) as socket:
        await socket.send(json.dumps(request("ping")))
        assert json.loads(await socket.recv())["result"] == {}


async def test_an_upload_of_a_hundred_mebibytes_passes_and_one_beyond_is_refused(
    site: Site, tmp_path: Path
) -> None:
    """The proxy stores no body on its disk and logs no URL."""
    size = 100 * MEBIBYTE

    def staged() -> int:
        return sum(file.stat().st_size for file in (tmp_path / "home").rglob("*") if file.is_file())

    async def body() -> AsyncIterator[bytes]:
        for sent in range(100):
            if sent == 50:
                await eventually_async(lambda: staged() > MEBIBYTE, what="the first half at the server")
            yield b"x" * MEBIBYTE

    async with site.client() as client:
        started = await ok(client, "kb_upload_start", filename="large.txt", total_size=size)
        url = started["upload_url"]
        assert url.startswith(f"{site.url}/uploads/")
        sent = await client.put(url, content=body(), headers={"Content-Length": str(size)})
        assert (sent.status_code, sent.json()["received_bytes"]) == (201, size)
    port = int(site.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(site.pair.certificate))
    path = url.removeprefix(site.url)
    writer.write(f"PUT {path} HTTP/1.1\r\nHost: kb\r\nContent-Length: {102 * MEBIBYTE}\r\n\r\n".encode())
    assert (await reader.readline()).split()[1] == b"413"
    writer.close()
    await writer.wait_closed()
    assert list((tmp_path / "nginx" / "body").rglob("*")) == []
    logged = (tmp_path / "nginx" / "access.log").read_text()
    assert '"PUT /uploads/" 201' in logged
    assert url.rpartition("/")[2] not in logged


async def test_the_server_knows_its_client_and_not_whom_that_claims_to_be(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    wrong = {"Authorization": "Bearer wrong", "X-Forwarded-For": "203.0.113.9"}
    async with site.client("127.0.0.2", **wrong) as client:
        refused = await client.post("/mcp", json=call("kb_status"), headers=BOTH)
    assert refused.status_code == 401
    refusals = [record for record in caplog.records if record.message == "Refused a request"]
    assert [getattr(record, "address", None) for record in refusals] == ["127.0.0.2"]


def test_a_stream_may_keep_still_for_an_hour() -> None:
    """nginx's default closes a connection after a minute of silence."""
    text = CONFIGURATION.read_text("utf-8")
    assert "proxy_read_timeout 1h;" in text
    assert "proxy_send_timeout 1h;" in text
