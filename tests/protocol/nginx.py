"""A real nginx with the configuration that is shipped, before a server."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

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
from tests.support.patience import ANSWER_SECONDS
from tests.support.simulated_engine import simulated_engine

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
CONFIGURATION = Path(__file__).parents[2] / "deploy" / "proxy" / "nginx.conf"
KEY = "agents-secret"


class Done(msgspec.Struct):
    """The result of the tool `waiting`."""

    done: bool = True


class WaitingTool(Tool[NoArguments, Done]):
    """Reports progress at once, and then waits until it is released."""

    name = "waiting"
    title = "Waiting"
    description = "Reports progress, and waits."
    annotations = Annotations()
    reports = True
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
