"""Hosts to compare with: the same `kb_search` over the same engine, as others would write it.

    python -m kb_load.bench.contenders bare --port 8902 --engine http://127.0.0.1:8901

`bare` is the ceiling: an aiohttp handler that parses the message with the JSON library of this server,
asks the engine and dumps the answer, with no check, key, log or metric. `sdk` is the `MCPServer` of the
official SDK on uvicorn, stateless, answering in plain JSON, with an aiohttp client to the engine;
`sdk-aiohttp` is the same server on `mcp_aiohttp`. `example` and `example-uvicorn` are the SDK's own example
server, which asks no engine, on both. `fastmcp` is FastMCP on uvicorn with httpx. uvicorn takes uvloop and
httptools where they are installed.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

EXAMPLE_FILE = Path(__file__).parents[3] / "examples" / "hosting" / "everything_server.py"
NAME = "kb_search"
DESCRIPTION = "Search the knowledge base."


def bare(engine_url: str, port: int) -> None:
    """The ceiling."""
    import aiohttp
    import uvloop
    from aiohttp import web

    from kb_load.bench.stub_engine import serve

    url = f"{engine_url}/api/v1/search"
    headers = {"Content-Type": "application/json"}
    session = web.AppKey("session", aiohttp.ClientSession)

    async def handle(request: web.Request) -> web.Response:
        message = msgspec.json.decode(await request.read())
        body = msgspec.json.encode(message["params"]["arguments"])
        async with request.app[session].post(url, data=body, headers=headers) as response:
            found = msgspec.json.decode(await response.read())
        text = msgspec.json.encode(found).decode()
        result = {
            "content": [{"type": "text", "text": text}],
            "structuredContent": found,
            "isError": False,
        }
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

    async def connected(app: web.Application) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=512)) as app[session]:
            yield

    app = web.Application()
    app.router.add_post("/mcp", handle)
    app.cleanup_ctx.append(connected)
    uvloop.run(serve(app, port))


def _sdk(engine_url: str) -> MCPServer[None]:
    """The tool as a server of the official SDK."""
    import aiohttp
    from mcp.server.mcpserver import MCPServer

    sessions: list[aiohttp.ClientSession] = []

    @asynccontextmanager
    async def connected(_server: MCPServer[None]) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=512)
        async with aiohttp.ClientSession(engine_url, connector=connector) as session:
            sessions.append(session)
            yield

    server: MCPServer[None] = MCPServer("compared", log_level="WARNING", lifespan=connected)

    @server.tool(name=NAME, description=DESCRIPTION)
    async def kb_search(query: str, top: int = 10) -> dict[str, Any]:
        body = msgspec.json.encode({"query": query, "top": top})
        headers = {"Content-Type": "application/json"}
        async with sessions[0].post("/api/v1/search", data=body, headers=headers) as response:
            found: dict[str, Any] = msgspec.json.decode(await response.read())
        return found

    return server


def _example() -> MCPServer[Any]:
    """The example server of the SDK."""
    spec = spec_from_file_location("everything_server", EXAMPLE_FILE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    logging.getLogger().setLevel(logging.WARNING)
    server: MCPServer[Any] = module.mcp
    return server


def _on_uvicorn(server: MCPServer[Any], port: int) -> None:
    import uvicorn

    app = server.streamable_http_app(stateless_http=True, json_response=True)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


def _on_aiohttp(server: MCPServer[Any], port: int) -> None:
    import uvloop

    from mcp_aiohttp.protocol.kernel import HostedServer
    from mcp_aiohttp.transport.http import build_app, serve

    uvloop.run(serve(build_app({"/mcp": HostedServer(server)}), "127.0.0.1", port))


def fastmcp(engine_url: str, port: int) -> None:
    """FastMCP."""
    import httpx
    import uvicorn
    from fastmcp import FastMCP

    clients: list[httpx.AsyncClient] = []

    @asynccontextmanager
    async def connected(_server: FastMCP[None]) -> AsyncIterator[None]:
        limits = httpx.Limits(max_connections=512, max_keepalive_connections=512)
        async with httpx.AsyncClient(base_url=engine_url, limits=limits) as client:
            clients.append(client)
            yield

    server: FastMCP[None] = FastMCP("compared", lifespan=connected)

    @server.tool(name=NAME, description=DESCRIPTION)
    async def kb_search(query: str, top: int = 10) -> dict[str, Any]:
        response = await clients[0].post("/api/v1/search", json={"query": query, "top": top})
        found: dict[str, Any] = response.json()
        return found

    app = server.http_app(path="/mcp", stateless_http=True, json_response=True)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


CONTENDERS: dict[str, Callable[[str, int], None]] = {
    "bare": bare,
    "sdk": lambda engine_url, port: _on_uvicorn(_sdk(engine_url), port),
    "sdk-aiohttp": lambda engine_url, port: _on_aiohttp(_sdk(engine_url), port),
    "fastmcp": fastmcp,
    "example": lambda _engine_url, port: _on_aiohttp(_example(), port),
    "example-uvicorn": lambda _engine_url, port: _on_uvicorn(_example(), port),
}


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=CONTENDERS)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--engine", required=True)
    options = parser.parse_args()
    CONTENDERS[options.name](options.engine, options.port)


if __name__ == "__main__":
    main()
