"""A server with keys for callers, before a simulated engine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kb_contracts.access.key_file import KeyFile, rights_of
from kb_server.hosting.http import build_app
from kb_server.hosting.toolset_server import mount
from kb_server.oauth.oauth_settings import OAuthSettings
from kb_server.observability.metrics import Metrics
from kb_server.pages.routes import Pages
from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.toolsets import build_toolset
from kb_server.uploads.routes import routes
from mcp_aiohttp.options import HostingOptions
from tests.protocol.conftest import Served, serving
from tests.support.mcp_messages import MODERN, modern, modern_headers, request
from tests.support.simulated_engine import SimulatedEngine, simulated_engine
from tests.support.tokens import Issuer

NAMES = ("kb", "kb-extra", "chatgpt", "knowledge", "ragler")


@dataclass
class House:
    """A server with toolsets and pages in front of a simulated engine, and its file of keys."""

    served: Served
    engine: SimulatedEngine
    keys: KeyFile
    services: Services

    def key(self, name: str = "ci", rights: str = "read", **members: Any) -> str:
        return self.keys.create(name, rights=rights_of(rights.split()), **members)[1]

    async def ask(
        self,
        token: str,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        era: str = MODERN,
        path: str = "/mcp",
    ) -> dict[str, Any]:
        message = request(method, params)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        if era == MODERN:
            message = modern(message)
            headers |= modern_headers(message)
        else:
            headers |= {"MCP-Protocol-Version": era, "Content-Type": "application/json"}
        response = await self.served.http.post(path, json=message, headers=headers)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    async def tools(self, token: str, *, era: str = MODERN, path: str = "/mcp") -> set[str]:
        found = await self.ask(token, "tools/list", era=era, path=path)
        return {tool["name"] for tool in found["result"]["tools"]}

    async def call(self, token: str, tool: str, path: str = "/mcp", **arguments: Any) -> dict[str, Any]:
        """Return the structured content, or the error object under `refused`."""
        params = {"name": tool, "arguments": arguments}
        result = (await self.ask(token, "tools/call", params, path=path))["result"]
        if result["isError"]:
            return {"refused": json.loads(result["content"][0]["text"])}
        return dict(result["structuredContent"])


Open = Callable[..., Awaitable[House]]


@asynccontextmanager
async def houses(home: Path) -> AsyncIterator[Open]:
    """Yield a function that starts a house; all of them are stopped at the end."""
    async with AsyncExitStack() as stack:

        async def start(issuer: Issuer | None = None, **settings: Any) -> House:
            engine = await stack.enter_async_context(simulated_engine())
            oauth = {name: settings.pop(name) for name in [*settings] if name.startswith("oauth")}
            if issuer is not None:
                oauth["oauth_issuer"] = issuer.url
            configured = ServerSettings(
                **{
                    "engine_url": engine.url,
                    "ragler_api_url": engine.url,
                    "home": home,
                    "toolsets": list(NAMES),
                    "parts": (OAuthSettings(**oauth),),
                    **settings,
                }
            )
            services = await stack.enter_async_context(Services(configured))
            toolsets = [build_toolset(name, services) for name in (*NAMES, "textfile")]
            mounts = mount(toolsets, configured.toolsets)
            services.paths = [each.path for each in mounts]
            pages = Pages(services)
            app = build_app(
                configured,
                mounts,
                routes=[*routes(lambda: services.uploads), *pages.routes()],
                root=pages.root,
                options=HostingOptions(authenticator=services.callers, resource=services.resource),
                metrics=Metrics(),
            )
            served = await stack.enter_async_context(serving(app))
            services.http_base = served.base
            return House(served, engine, KeyFile(configured.keys_file), services)

        yield start
