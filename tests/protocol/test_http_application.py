"""The application around the MCP endpoints: probes, metrics, additional routes, start and stop."""

from __future__ import annotations

import asyncio
import os
import signal
import socket

import pytest
from aiohttp import web

from kb_config.logs import fields_of
from kb_server.hosting.http import build_app
from kb_server.hosting.toolset_server import mount
from kb_server.settings import ServerSettings
from mcp_aiohttp.transport.http import CannotListen, PortInUse, Readiness
from mcp_aiohttp.transport.http import serve as serve_app
from tests.protocol.conftest import Serve, Served, serving
from tests.support.fake_toolset import Fake
from tests.support.mcp_messages import BOTH, PLAIN, call
from tests.support.patience import ANSWER_SECONDS

KEY = "a-secret-key"


async def test_a_path_with_nothing_says_where_mcp_is(serve: Serve) -> None:
    """404 in JSON, without OAuth documents, because keys are not issued by OAuth."""
    served = await serve(settings={"api_key": KEY})
    for path in ("/nothing", "/mcp/other", "/mcp//", "/.well-known/oauth-protected-resource"):
        response = await served.http.get(path)
        assert response.status_code == 404
        assert "/mcp, /mcp/fake" in response.json()["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/register"),
        ("GET", "/.well-known/oauth-authorization-server"),
        ("GET", "/.well-known/oauth-protected-resource/mcp"),
        ("GET", "/.well-known/openid-configuration"),
    ],
)
@pytest.mark.parametrize(
    ("key", "words"), [(KEY, "`Authorization: Bearer <KB_MCP_API_KEY>`"), ("", "No key is needed")]
)
async def test_where_a_client_looks_for_oauth_it_learns_which_header_to_send(
    serve: Serve, method: str, path: str, key: str, words: str
) -> None:
    """The answer has `error_description`, because clients print that member."""
    served = await serve(settings={"api_key": key})
    response = await served.http.request(method, path, json={})
    assert response.status_code == 404
    answer = response.json()
    assert answer["error_description"] == answer["message"]
    assert words in answer["message"]


async def test_the_root_and_wrong_methods_are_answered_in_json(served: Served) -> None:
    response = await served.http.get("/")
    assert response.json()["mcp"] == ["/mcp", "/mcp/fake"]
    response = await served.http.post("/healthz")
    assert response.status_code == 405
    assert "GET" in response.headers["Allow"]
    assert response.json()["error"] == "method_not_allowed"


async def test_probes_tell_alive_from_ready(serve: Serve) -> None:
    """Any Host is accepted, as a cluster's probes need; 503 with the reason when not ready."""
    state = [Readiness(False, "the engine at http://engine:8000 is unreachable"), Readiness(True)]

    async def ready() -> Readiness:
        return state.pop(0)

    served = await serve(ready=ready)
    pod = {"Host": "10.1.2.3:3000"}
    for path in ("/health", "/healthz"):
        response = await served.http.get(path, headers=pod)
        assert (response.status_code, response.json()) == (200, {"status": "ok"})
    response = await served.http.get("/readyz", headers=pod)
    assert response.status_code == 503
    assert "engine:8000 is unreachable" in response.json()["reason"]
    assert (await served.http.get("/readyz", headers=pod)).status_code == 200


async def test_metrics_count_calls_and_want_the_key_from_elsewhere(serve: Serve) -> None:
    """A peer on this machine needs no key, unless it is a proxy."""
    served = await serve(settings={"api_key": KEY})
    headers = {**PLAIN, "Authorization": f"Bearer {KEY}"}
    response = await served.post(call("echo", text="a"), headers)
    assert response.status_code == 200
    response = await served.http.get("/metrics")
    assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert 'mcp_requests_total{tool="echo",status="success"} 1' in response.text
    response = await served.http.get("/metrics", headers={"X-Forwarded-For": "8.8.8.8"})
    assert response.status_code == 401


async def test_metrics_can_be_turned_off(serve: Serve) -> None:
    served = await serve(settings={"enable_metrics": False})
    assert (await served.http.get("/metrics")).status_code == 404


async def test_routes_of_other_parts_carry_their_own_credentials(serve: Serve, fake: Fake) -> None:
    """They are called without the key, but never from a cross-site page; internal errors stay hidden."""

    async def put(request: web.Request) -> web.Response:
        if not request.can_read_body:
            raise RuntimeError("words within")
        return web.Response(text=str(len(await request.read())))

    served = await serve(fake.toolset, settings={"api_key": KEY}, routes=[web.put("/upload/{token}", put)])
    url = "/upload/t"
    response = await served.http.put(url, content=b"12345")
    assert (response.status_code, response.text) == (200, "5")
    response = await served.http.put(url, content=b"1", headers={"Host": "evil.example"})
    assert response.status_code == 421
    response = await served.http.put(url)
    assert response.status_code == 500
    assert "words" not in response.text


async def test_a_refusal_and_a_fault_are_logged_by_their_route(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    async def put(request: web.Request) -> web.Response:
        raise RuntimeError("within")

    caplog.set_level("WARNING", "httpx")  # the client's own log contains the whole URL
    caplog.set_level("INFO")
    served = await serve(routes=[web.put("/upload/{token}", put)])
    for headers in ({}, {"Host": "evil.example"}):
        await served.http.put("/upload/one-time-token", headers=headers)
    told = [fields_of(record) for record in caplog.records if "equest" in record.message]
    assert told[0] == {"method": "PUT", "route": "/upload/{token}"}
    refused = {"status": 421, "error": "host_not_allowed", "address": "127.0.0.1"}
    assert told[1] == {**refused, "route": "/upload/{token}"}
    assert "one-time-token" not in caplog.text


async def test_the_lifespan_of_a_toolset_is_entered_once_and_left_at_the_end(fake: Fake) -> None:
    app = build_app(ServerSettings(), mount([fake.toolset], ["fake"]))
    async with serving(app):
        assert (fake.entered, fake.left) == (1, 0)
    assert (fake.entered, fake.left) == (1, 1)


async def test_a_call_in_flight_ends_before_the_server_does(serve: Serve, fake: Fake) -> None:
    served = await serve(serve_options={"drain_seconds": ANSWER_SECONDS})
    slow = asyncio.ensure_future(served.post(call("slow"), BOTH))
    await fake.slow.started.wait()
    served.stop.set()
    await _until_refused(served.port)
    fake.slow.release.set()
    assert (await slow).status_code == 200
    await asyncio.wait_for(asyncio.shield(served.task), ANSWER_SECONDS)
    assert not fake.slow.cancelled.is_set()


async def _until_refused(port: int) -> None:
    async with asyncio.timeout(ANSWER_SECONDS):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionError:
                return
            writer.close()
            await asyncio.sleep(0)


async def test_a_call_that_does_not_end_is_cancelled_in_time(serve: Serve, fake: Fake) -> None:
    served = await serve(serve_options={"drain_seconds": 0.1})
    slow = asyncio.ensure_future(served.post(call("slow"), BOTH))
    await fake.slow.started.wait()
    served.stop.set()
    await asyncio.wait_for(asyncio.shield(served.task), ANSWER_SECONDS)
    assert fake.slow.cancelled.is_set()
    await asyncio.gather(slow, return_exceptions=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_the_server(fake: Fake, number: signal.Signals) -> None:
    """SIGTERM as from an orchestrator, SIGINT as from a terminal; the handlers are removed afterwards."""
    before = signal.getsignal(number)
    app = build_app(ServerSettings(), mount([fake.toolset], ["fake"]))
    async with serving(app) as served:
        os.kill(os.getpid(), number)
        await asyncio.wait_for(asyncio.shield(served.task), ANSWER_SECONDS)
    assert signal.getsignal(number) == before


async def test_a_port_in_use_is_an_error_of_its_own(fake: Fake) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        app = build_app(ServerSettings(), mount([fake.toolset], ["fake"]))
        with pytest.raises(PortInUse) as caught:
            await serve_app(app, "127.0.0.1", port)
    assert str(caught.value) == f"cannot listen on 127.0.0.1:{port}: another process listens there already"
    assert (caught.value.host, caught.value.port) == ("127.0.0.1", port)
    assert fake.left == 1


async def test_an_address_of_another_machine_cannot_be_listened_on(fake: Fake) -> None:
    app = build_app(ServerSettings(), mount([fake.toolset], ["fake"]))
    with pytest.raises(CannotListen, match=r"cannot listen on 192\.0\.2\.1:0"):
        await serve_app(app, "192.0.2.1", 0)


async def test_a_server_without_a_key_warns_at_start(fake: Fake, caplog: pytest.LogCaptureFixture) -> None:
    build_app(ServerSettings(api_key=""), mount([fake.toolset], ["fake"]))
    assert "KB_MCP_API_KEY is not set" in caplog.text
    caplog.clear()
    build_app(ServerSettings(api_key=KEY), mount([fake.toolset], ["fake"]))
    assert caplog.text == ""
