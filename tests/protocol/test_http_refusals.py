"""Requests that are refused before any handler: keys, hosts, origins, methods, types and sizes."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from mcp_aiohttp.options import BodyLimits
from tests.protocol.conftest import Serve, Served
from tests.support.fake_toolset import Fake
from tests.support.mcp_messages import PLAIN, call, request
from tests.support.patience import ANSWER_SECONDS, SILENCE

KEY = "a-secret-key"
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD")


async def raw(port: int, data: bytes) -> bytes:
    """Send raw `data` and return the head of the server's answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    await writer.drain()
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), ANSWER_SECONDS)
    writer.close()
    return answer


@pytest.mark.requirement("K9", "K12")
@pytest.mark.parametrize("path", ["/mcp", "/mcp/fake"])
@pytest.mark.parametrize("method", METHODS)
async def test_without_the_key_every_method_is_unauthorized(serve: Serve, method: str, path: str) -> None:
    served = await serve(settings={"api_key": KEY})
    headers = {"Host": "evil.example", "Origin": "http://evil.example"}
    response = await served.http.request(method, path, content=b"{", headers=headers)
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"] == "Bearer"
    if method != "HEAD":
        assert "Authorization: Bearer" in response.json()["error"]["message"]


@pytest.mark.requirement("K11", "K13")
async def test_with_the_key_calls_are_answered_and_probes_need_none(serve: Serve) -> None:
    served = await serve(settings={"api_key": KEY})
    for token, status in ((KEY, 200), (KEY + "x", 401), ("\xff", 401)):
        sent = f"Bearer {token}".encode("latin-1")
        headers = {b"Content-Type": b"application/json", b"Authorization": sent}
        response = await served.post(call("echo", text="a"), headers)
        assert response.status_code == status
    for path in ("/healthz", "/readyz"):
        response = await served.http.get(path)
        assert response.status_code == 200


@pytest.mark.requirement("K10", "K14")
async def test_without_a_key_set_everyone_is_served_and_the_engines_key_opens_nothing(serve: Serve) -> None:
    open_ = await serve(settings={"engine_api_key": "engine-key"})
    for headers in (PLAIN, {**PLAIN, "Authorization": "Bearer anything"}):
        response = await open_.post(call("echo", text="a"), headers)
        assert response.status_code == 200
    kept = await serve(Fake().toolset, settings={"engine_api_key": "engine-key", "api_key": KEY})
    headers = {**PLAIN, "Authorization": "Bearer engine-key"}
    response = await kept.post(call("echo", text="a"), headers)
    assert response.status_code == 401


@pytest.mark.parametrize(
    ("target", "coding", "status"),
    [
        ("http://other.example/healthz", "chunked", b"421"),
        ("http://localhost/healthz", "chunked", b"200"),
        ("/healthz", "gzip, chunked", b"501"),
    ],
)
async def test_targets_of_other_hosts_and_transfer_codings_are_refused(
    served: Served, target: str, coding: str, status: bytes
) -> None:
    head = f"GET {target} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: {coding}\r\n\r\n0\r\n\r\n"
    assert (await raw(served.port, head.encode())).startswith(b"HTTP/1.1 " + status)


async def test_a_caller_without_the_key_is_not_asked_for_its_body(serve: Serve) -> None:
    """`Expect: 100-continue` is answered with the refusal, or with 100 for a valid key and size."""
    served = await serve(settings={"api_key": KEY})
    head = (
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Expect: 100-continue\r\nContent-Length: {}\r\n{}\r\n"
    )
    key = f"Authorization: Bearer {KEY}\r\n"
    assert (await raw(served.port, head.format(10, "").encode())).startswith(b"HTTP/1.1 401 ")
    assert (await raw(served.port, head.format(10**9, key).encode())).startswith(b"HTTP/1.1 413 ")
    assert (await raw(served.port, head.format(10, key).encode())).startswith(b"HTTP/1.1 100 ")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "localhost", "Origin": "http://evil.example"}, 403),
        ({"Host": "localhost:1", "Origin": "http://localhost:6274"}, 200),
    ],
)
async def test_strangers_pages_are_kept_out(served: Served, headers: dict[str, str], status: int) -> None:
    response = await served.post(call("echo", text="a"), {**PLAIN, **headers})
    assert response.status_code == status
    if status != 200:
        error = response.json()["error"]
        assert "KB_ALLOWED_" in error["message"]
        assert error["data"]["error_type"] in ("host_not_allowed", "origin_not_allowed")
        assert "Access-Control-Allow-Origin" not in response.headers


async def test_an_admitted_page_may_ask_first_and_read_the_answer(serve: Serve) -> None:
    """A browser's preflight has no key; the call itself must have one."""
    settings = {"api_key": KEY, "allowed_origins": ["https://app.example"]}
    served = await serve(settings=settings)
    page = {"Origin": "https://app.example"}
    asking = {**page, "Access-Control-Request-Method": "POST"}
    response = await served.http.options("/mcp", headers=asking)
    assert response.status_code == 204
    assert response.headers["Access-Control-Allow-Origin"] == "https://app.example"
    assert "Authorization" in response.headers["Access-Control-Allow-Headers"]
    keyed = {**PLAIN, **page, "Authorization": f"Bearer {KEY}"}
    response = await served.post(call("echo", text="a"), keyed)
    assert response.status_code == 200
    assert response.headers["Access-Control-Allow-Origin"] == "https://app.example"
    assert response.headers["Vary"] == "Origin"
    response = await served.http.options("/mcp", headers={**asking, "Origin": "https://evil.example"})
    assert response.status_code == 401
    response = await served.post(call("echo", text="a"), {**PLAIN, **page})
    assert response.status_code == 401


@pytest.mark.parametrize("method", [method for method in METHODS if method != "POST"])
async def test_only_a_post_carries_messages(served: Served, method: str) -> None:
    """405 with Allow: there is no session to listen to or to end."""
    response = await served.http.request(method, "/mcp", headers={"Accept": "text/event-stream"})
    assert response.status_code == 405
    assert response.headers["Allow"] == "POST"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"Content-Type": "application/json; charset=utf-16"},
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
    ],
)
async def test_only_plain_json_is_read(served: Served, headers: dict[str, str]) -> None:
    body = json.dumps(call("echo", text="a")).encode()
    response = await served.http.post("/mcp", content=body, headers=headers)
    assert response.status_code == 415
    assert response.json()["error"]["data"]["error_type"] == "unsupported_media_type"


@pytest.mark.parametrize(
    "media_type", ["application/json; charset=utf-8", "Application/JSON", 'application/json;charset="UTF8"']
)
async def test_json_is_json_however_it_is_spelt(served: Served, media_type: str) -> None:
    body = json.dumps(call("echo", text="ä"), ensure_ascii=False).encode()
    response = await served.http.post("/mcp", content=body, headers={"Content-Type": media_type})
    assert response.json()["result"]["structuredContent"]["said"] == "ä"


HEAD = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
LIMITS = BodyLimits(max_bytes=1000, read_timeout=ANSWER_SECONDS, total=ANSWER_SECONDS)


def padded(length: int) -> bytes:
    body = json.dumps(request("ping")).encode()
    return body + b" " * (length - len(body))


async def test_a_message_at_the_limit_is_read_and_one_beyond_is_refused(serve: Serve) -> None:
    served = await serve(body=LIMITS)

    async def chunked(body: bytes) -> Any:
        yield body[:500]
        yield body[500:]

    for length, status in ((1000, 200), (1001, 413)):
        for data in (padded(length), chunked(padded(length))):
            response = await served.http.post("/mcp", content=data, headers=PLAIN)
            assert response.status_code == status
            answer = response.json()
        if status == 413:
            assert "1000 bytes" in answer["error"]["message"]
            assert answer["error"]["data"]["details"] == {"limit_bytes": 1000}
            assert answer["id"] is None


async def test_a_body_that_stops_coming_is_given_up(serve: Serve) -> None:
    served = await serve(body=replace(LIMITS, read_timeout=SILENCE))
    answer = await raw(served.port, HEAD + b"Content-Length: 100\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"Connection: close" in answer


async def test_the_limit_is_twelve_mebibytes(served: Served) -> None:
    """A chunk of 8 MiB in base64 fits."""
    for length, status in ((12 * 1024 * 1024, 200), (12 * 1024 * 1024 + 1, 413)):
        response = await served.http.post("/mcp", content=padded(length), headers=PLAIN)
        assert response.status_code == status


@pytest.mark.parametrize(("body", "code"), [(b"{", -32700), (b'{"jsonrpc":"2.0","id":1}', -32600)])
async def test_an_unreadable_body_is_refused_with_the_code_of_json_rpc(
    served: Served, body: bytes, code: int
) -> None:
    response = await served.http.post("/mcp", content=body, headers=PLAIN)
    assert response.status_code == 400
    answer = response.json()
    assert answer["error"]["code"] == code
    assert answer["error"]["data"]["error_type"] in ("parse_error", "invalid_request")
