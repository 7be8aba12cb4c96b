"""nginx with the shipped configuration in front of a server: forwarded requests, streams and limits."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from websockets.asyncio.client import connect

from kb_http.certificate import trusting
from kb_load.processes import free_port
from kb_server.hosting.http import build_app
from kb_server.hosting.toolset_server import mount
from kb_server.pages.routes import Pages
from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.tool import Annotations, Call, NoArguments, Tool, Toolset
from kb_server.toolsets import build_toolset
from kb_server.uploads.routes import routes
from tests.protocol.conftest import serving
from tests.support.certificates import Pair, write_pair
from tests.support.eventually import eventually_async
from tests.support.mcp_messages import BOTH, call, events, request
from tests.support.patience import ANSWER_SECONDS
from tests.support.simulated_engine import simulated_engine

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
CONFIGURATION = Path(__file__).parents[2] / "deploy" / "proxy" / "nginx.conf"
KEY = "agents-secret"
MEBIBYTE = 1 << 20

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(NGINX is None, reason="no nginx on this machine"),
]


class Done(msgspec.Struct):
    """The result of the tool `waiting`."""

    done: bool = True


class WaitingTool(Tool[NoArguments, Done]):
    """Reports progress at once, and then waits until it is released."""

    name = "waiting"
    title = "Waiting"
    description = "Reports progress, and waits."
    annotations = Annotations()
    document_mark = "none"

    def __init__(self) -> None:
        self.release = asyncio.Event()

    async def run(self, _arguments: NoArguments, call: Call) -> Done:
        await call.progress(0.5, 1.0, "half way")
        await self.release.wait()
        return Done()


@dataclass
class Site:
    """The HTTPS and HTTP URLs of the proxy, and the tool behind it."""

    url: str
    plain_url: str
    pair: Pair
    waiting: WaitingTool

    def client(self, address: str = "127.0.0.1", **headers: str) -> httpx.AsyncClient:
        """Return a client that connects from this local address."""
        transport = httpx.AsyncHTTPTransport(verify=trusting(self.pair.certificate), local_address=address)
        authorization = {"Authorization": f"Bearer {KEY}", **headers}
        return httpx.AsyncClient(
            base_url=self.url, transport=transport, headers=authorization, timeout=ANSWER_SECONDS
        )


@contextmanager
def nginx(folder: Path, pair: Pair, upstream: int, port: int, plain_port: int) -> Iterator[None]:
    """Run nginx as configured, with only addresses, upstream and file paths replaced."""
    text = CONFIGURATION.read_text("utf-8")
    for shipped, here in {
        "listen 80;": f"listen 127.0.0.1:{plain_port};",
        "listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;",
        "server 127.0.0.1:3000;": f"server 127.0.0.1:{upstream};",
        "https://$host$request_uri": f"https://$host:{port}$request_uri",
        "/etc/nginx/tls/certificate.pem": str(pair.certificate),
        "/etc/nginx/tls/key.pem": str(pair.key),
        "/tmp/nginx": str(folder),
        "/dev/stdout": str(folder / "access.log"),
    }.items():
        assert shipped in text, shipped
        text = text.replace(shipped, here)
    configuration = folder / "nginx.conf"
    configuration.write_text(text)
    assert NGINX is not None
    with subprocess.Popen(
        [NGINX, "-p", str(folder), "-c", str(configuration), "-g", "daemon off;"], stderr=subprocess.PIPE
    ) as process:
        try:
            yield
        finally:
            process.terminate()
            _, errors = process.communicate(timeout=ANSWER_SECONDS)
    assert not errors, errors.decode()


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Site]:
    pair, waiting = write_pair(folder / "tls"), WaitingTool()
    port, plain_port = free_port(), free_port()
    settings = ServerSettings(
        home=folder / "home",
        api_key=KEY,
        public_url=f"https://127.0.0.1:{port}",
        trusted_proxies=["127.0.0.1"],
    )
    own = Toolset("own", "own", "1", "own", "", (waiting,))
    async with simulated_engine() as engine:
        settings = msgspec.structs.replace(settings, engine_url=engine.url)
        async with Services(settings, http_base=settings.public_url) as services:
            pages = Pages(services)
            app = build_app(
                settings,
                mount([build_toolset("kb", services), own], ["kb"]),
                routes=[*routes(lambda: services.uploads), *pages.routes()],
                root=pages.root,
            )
            async with serving(app) as served:
                (folder / "nginx").mkdir()
                with nginx(folder / "nginx", pair, served.port, port, plain_port):
                    site = Site(settings.public_url, f"http://127.0.0.1:{plain_port}", pair, waiting)
                    await eventually_async(lambda: _listens(port), what="nginx")
                    yield site


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


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
    async with httpx.AsyncClient(verify=False) as stranger:
        led = await stranger.get(f"{site.plain_url}/mcp?x=1")
    assert (led.status_code, led.headers["Location"]) == (301, f"{site.url}/mcp?x=1")


async def test_the_cookie_of_the_pages_is_for_https_alone(site: Site) -> None:
    async with site.client() as client:
        right = await client.post("/login", files={"key": (None, KEY)}, headers={"Accept": "text/html"})
    assert (right.status_code, "Secure" in right.headers["Set-Cookie"]) == (303, True)


async def test_progress_arrives_while_the_call_goes_on(site: Site) -> None:
    """The proxy does not buffer the stream."""
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
