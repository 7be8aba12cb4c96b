"""Stub engine and comparison servers of the benchmarks, each a process of its own.

    python -m bench.servers bare --port 8902 --engine http://127.0.0.1:8901

`engine` responds at once with fixed bytes, so that the measured cost is the host's: a search with seven
results of realistic texts, made by seed; a file is read to its end and its bytes are counted. Nothing is
stored.

The other servers are hosts of the same `kb_search` over that engine, written in the usual way. `bare` is the
ceiling: an aiohttp handler that parses the message with the JSON library of this server, asks the engine and
dumps the answer, with no check, key, log or metric. `sdk` is the `MCPServer` of the official SDK on uvicorn,
stateless, answering in plain JSON, with an aiohttp client to the engine; `sdk-aiohttp` is the same server on
`mcp_aiohttp`. `example` and `example-uvicorn` are the SDK's own example server, which asks no engine, on
both. `fastmcp` is FastMCP on uvicorn with httpx. uvicorn takes uvloop and httptools where they are
installed.

`uploads` is the ceiling of uploads: bare handlers that do the same decoding and writing, and nothing else.
`POST /chunk` takes the same message as `kb_upload_chunk`: parsed and decoded with the libraries of this
server, written to a file of its own aside and renamed; both in a thread, as a server must whose other
callers wait. `PUT /direct` streams the body to a file in the same way, in blocks of a MiB. `DELETE /files`
removes the uploads, since replacing a large file takes the time of freeing it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
import pybase64
import uvloop
from aiohttp import web
from faker import Faker

from kb_contracts.api import models as m

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

EXAMPLE_FILE = Path(__file__).parents[2] / "examples" / "hosting" / "everything_server.py"
NAME = "kb_search"
DESCRIPTION = "Search the knowledge base."
RESULTS = 7
SEED = 7
_TIME = "2026-03-01T09:30:00.000Z"
_BLOCK_BYTES = 1 << 20
_READ_BYTES = 1 << 18
_MAX_MESSAGE_BYTES = 12 * _BLOCK_BYTES


async def _serve(app: web.Application, port: int) -> None:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


def _tool_answer(request_id: int, found: Any) -> web.Response:
    text = msgspec.json.encode(found).decode()
    result = {"content": [{"type": "text", "text": text}], "structuredContent": found, "isError": False}
    answer = {"jsonrpc": "2.0", "id": request_id, "result": result}
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")


# --- the engine -----------------------------------------------------------------------------------


def search_response() -> m.SearchResponse:
    """Return the constant response to a search."""
    faker = Faker("en_GB")
    faker.seed_instance(SEED)

    def result(number: int) -> m.SearchResult:
        text = " ".join(faker.sentences(14))
        chunk = m.Chunk(
            id=1000 + number,
            uid=str(faker.uuid4()),
            index=number,
            text=text,
            page=number,
            heading=faker.sentence(4).rstrip("."),
            start=900 * number,
            end=900 * number + len(text),
        )
        document = m.DocumentSummary(
            id=40 + number,
            uid=str(faker.uuid4()),
            title=faker.sentence(5).rstrip("."),
            doc_type="pdf",
            format="pdf",
            filename=faker.file_name(extension="pdf"),
            source_path=faker.file_path(extension="pdf"),
            metadata={"author": faker.name(), "department": faker.job()},
            version=1,
            created_at=_TIME,
            updated_at=_TIME,
        )
        tags = ["collection:documents", faker.word()]
        return m.SearchResult(chunk=chunk, score=round(0.95 - number / 20, 4), document=document, tags=tags)

    results = [result(number) for number in range(1, RESULTS + 1)]
    return m.SearchResponse(results=results, total=143, mode="hybrid", took_ms=4.2, weak=False)


def engine(port: int) -> None:
    """Serve searches, jobs and the status."""
    fixed = {
        ("POST", "/api/v1/search"): msgspec.json.encode(search_response()),
        ("GET", "/api/v1/status"): msgspec.json.encode({"version": "3.0.0", "features": ["access"]}),
        ("GET", "/readyz"): msgspec.json.encode({"status": "ok"}),
    }
    app = web.Application(client_max_size=1 << 20)

    def answering(body: bytes) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            await request.read()
            return web.Response(body=body, content_type="application/json")

        return answer

    async def take_file(request: web.Request) -> web.Response:
        size = 0
        async for block in request.content.iter_any():
            size += len(block)
        job = m.Job(
            id="stub", status="queued", kind="file", title="stub", filename="stub.pdf", tags=[],
            step="queued", progress=0.0, completed_steps=0, total_steps=4, attempts=0, document_id=None,
            document_uid=None, deduplicated=False, error=None, created_at=_TIME, started_at=None,
            finished_at=None,
        )  # fmt: skip
        headers = {"X-Body-Bytes": str(size)}
        body = msgspec.json.encode(job)
        return web.Response(body=body, status=202, content_type="application/json", headers=headers)

    for (method, path), body in fixed.items():
        app.router.add_route(method, path, answering(body))
    app.router.add_post("/api/v1/jobs", take_file)
    uvloop.run(_serve(app, port))


# --- hosts ----------------------------------------------------------------------------------------


def bare(engine_url: str, port: int) -> None:
    import aiohttp

    url = f"{engine_url}/api/v1/search"
    headers = {"Content-Type": "application/json"}
    session = web.AppKey("session", aiohttp.ClientSession)

    async def handle(request: web.Request) -> web.Response:
        message = msgspec.json.decode(await request.read())
        body = msgspec.json.encode(message["params"]["arguments"])
        async with request.app[session].post(url, data=body, headers=headers) as response:
            found = msgspec.json.decode(await response.read())
        return _tool_answer(message["id"], found)

    async def connected(app: web.Application) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=512)) as app[session]:
            yield

    app = web.Application()
    app.router.add_post("/mcp", handle)
    app.cleanup_ctx.append(connected)
    uvloop.run(_serve(app, port))


def _sdk(engine_url: str) -> MCPServer[None]:
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
    from mcp_aiohttp.protocol.kernel import HostedServer
    from mcp_aiohttp.transport.http import build_app, serve

    uvloop.run(serve(build_app({"/mcp": HostedServer(server)}), "127.0.0.1", port))


def fastmcp(engine_url: str, port: int) -> None:
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


# --- uploads --------------------------------------------------------------------------------------


class _Arguments(msgspec.Struct):
    upload_id: str
    chunk_index: int
    data: str


class _Params(msgspec.Struct):
    arguments: _Arguments


class _Message(msgspec.Struct):
    id: int
    params: _Params


def uploads(folder: Path, port: int) -> None:
    """Serve bare upload handlers that write to `folder`, which contains only uploads."""
    decoder = msgspec.json.Decoder(_Message)

    def store(index: int, data: str) -> int:
        decoded = pybase64.b64decode(data, validate=True)
        temporary = folder / f"aside-{uuid4().hex}"
        temporary.write_bytes(decoded)
        temporary.replace(folder / f"chunk-{index}")
        return len(decoded)

    async def chunk(request: web.Request) -> web.Response:
        message = decoder.decode(await request.read())
        arguments = message.params.arguments
        size = await asyncio.to_thread(store, arguments.chunk_index, arguments.data)
        found = {"chunk_index": arguments.chunk_index, "received_bytes": size}
        return _tool_answer(message.id, found)

    async def direct(request: web.Request) -> web.Response:
        temporary = folder / f"aside-{uuid4().hex}"
        size = 0
        with temporary.open("wb", buffering=0) as file:
            waiting = bytearray()
            async for block in request.content.iter_chunked(_READ_BYTES):
                waiting += block
                size += len(block)
                if len(waiting) >= _BLOCK_BYTES:
                    await asyncio.to_thread(file.write, bytes(waiting))
                    waiting.clear()
            await asyncio.to_thread(file.write, bytes(waiting))
        temporary.replace(folder / "direct")
        return web.json_response({"received_bytes": size}, status=201)

    async def remove(_request: web.Request) -> web.Response:
        for path in folder.glob("*"):
            path.unlink()
        return web.Response(status=204)

    app = web.Application(client_max_size=_MAX_MESSAGE_BYTES)
    app.router.add_post("/chunk", chunk)
    app.router.add_put("/direct", direct)
    app.router.add_delete("/files", remove)
    uvloop.run(_serve(app, port))


HOSTS: dict[str, Callable[[str, int], None]] = {
    "bare": bare,
    "sdk": lambda engine_url, port: _on_uvicorn(_sdk(engine_url), port),
    "sdk-aiohttp": lambda engine_url, port: _on_aiohttp(_sdk(engine_url), port),
    "fastmcp": fastmcp,
    "example": lambda _engine_url, port: _on_aiohttp(_example(), port),
    "example-uvicorn": lambda _engine_url, port: _on_uvicorn(_example(), port),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=("engine", "uploads", *HOSTS))
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--engine", help="URL of the engine for the host")
    parser.add_argument("--folder", type=Path, help="folder for uploads")
    options = parser.parse_args()
    if options.name == "engine":
        engine(options.port)
    elif options.name == "uploads":
        uploads(options.folder, options.port)
    else:
        HOSTS[options.name](options.engine, options.port)


if __name__ == "__main__":
    main()
