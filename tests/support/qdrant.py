"""A small Qdrant server over HTTP: the REST routes that the index uses, around a core of `qdrant_cores.py`.

`EdgeCore` is Qdrant's core in this process (qdrant-edge), with several shards; `LocalCore` the Python model
of it in qdrant-client; `RealCore` forwards requests to a server elsewhere. Requests are parsed with the
client's models, which are generated from Qdrant's OpenAPI document and refuse unknown members; a write that
does not wait, or is not ordered, fails. A fault can be switched on, for all requests or after a number of
writes.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar
from uuid import uuid4

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import BaseModel, ValidationError
from qdrant_client.http.models import models as rest

from kb_engine.index.qdrant.index import QdrantIndex
from kb_engine.index.qdrant.qdrant_settings import QdrantSettings
from tests.support.patience import ANSWER_SECONDS, START_SECONDS
from tests.support.qdrant_cores import REAL_KEY, REAL_URL, Core, EdgeCore, Hits
from tests.support.serving import serving_app

M = TypeVar("M", bound=BaseModel)
Fault = Literal["unavailable", "cut", "torn", "garbage", "empty", "silent", "busy", "denied"]

API_KEY = "the-key-of-qdrant"


@dataclass
class QdrantServer:
    """The server side of the index, which outlives an engine."""

    core: Core
    url: str = ""
    fault: Fault | None = None
    breaks_after: int | None = None
    """Number of writes before the connection breaks, once."""
    created: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    """Number of requests by route, the cost of a search or a change."""
    key: str = ""

    @property
    def out_of_service(self) -> bool:
        return self.fault is not None

    @out_of_service.setter
    def out_of_service(self, broken: bool) -> None:
        self.fault = "unavailable" if broken else None

    def settings(self, **changes: Any) -> QdrantSettings:
        """Settings with a longer time-out, because tests share two cores."""
        return QdrantSettings(
            **{"url": self.url, "timeout": int(ANSWER_SECONDS), "api_key": self.key, **changes}
        )

    def index(self, **changes: Any) -> QdrantIndex:
        return QdrantIndex(self.settings(**changes))

    async def lose_everything(self) -> None:
        await self.core.delete(QdrantSettings().collection)

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._faults], client_max_size=32 * 1024 * 1024)
        of = "/collections/{name}"
        routes: list[tuple[str, str, Callable[[web.Request], Awaitable[object]]]] = [
            ("PUT", of, self._create),
            ("DELETE", of, self._delete),
            ("PUT", f"{of}/index", self._index),
            ("PUT", f"{of}/points", self._upsert),
            ("POST", f"{of}/points", self._retrieve),
            ("POST", f"{of}/points/delete", self._remove),
            ("POST", f"{of}/points/query/batch", self._query),
            ("POST", f"{of}/points/count", self._count),
            ("POST", f"{of}/facet", self._facet),
        ]
        for method, path, result in routes:
            app.router.add_route(method, path, _answering(result))
        return app

    @web.middleware
    async def _faults(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        assert resource is not None, f"{request.method} {request.path} is no route of this server"
        self.requests[f"{request.method} {resource.canonical}"] += 1
        if self.key and request.headers.get("api-key") != self.key:
            return _refused(401, "Must provide an API key or an Authorization bearer token")
        if self.fault is not None:
            return await self._broken(request, self.fault)
        if request.method == "PUT" and resource.canonical.endswith("points"):
            if self.breaks_after == 0:
                self.breaks_after = None
                return await self._broken(request, "cut")
            if self.breaks_after is not None:
                self.breaks_after -= 1
        return await handler(request)

    async def _broken(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        assert request.transport is not None
        match fault:
            case "unavailable":
                return _refused(503, "Service internal error: nobody answers")
            case "busy":
                return _refused(429, "Rate limiting exceeded", {"Retry-After": "7"})
            case "denied":
                return _refused(403, "Forbidden")
            case "garbage":
                return web.Response(text="<html>It works!</html>")
            case "empty":
                return web.json_response({})
            case "silent":
                await asyncio.Event().wait()
            case "torn":
                answer = web.StreamResponse(headers={"Content-Length": "1000"})
                await answer.prepare(request)
                await answer.write(b'{"result": {"hits"')
        request.transport.close()
        return web.Response()

    async def _create(self, request: web.Request) -> bool:
        wanted = await _parsed(request, rest.CreateCollection)
        self.created += 1
        await self.core.create(request.match_info["name"], wanted)
        return True

    async def _delete(self, request: web.Request) -> bool:
        return await self.core.delete(request.match_info["name"])

    async def _index(self, request: web.Request) -> dict[str, Any]:
        await self.core.index(request.match_info["name"], await _parsed(request, rest.CreateFieldIndex))
        return _done(request, ordered=False)

    async def _upsert(self, request: web.Request) -> dict[str, Any]:
        await self.core.upsert(request.match_info["name"], await _parsed(request, rest.PointsList))
        return _done(request)

    async def _remove(self, request: web.Request) -> dict[str, Any]:
        wanted = await _parsed(request, rest.FilterSelector)
        await self.core.remove(request.match_info["name"], wanted.filter)
        return _done(request)

    async def _query(self, request: web.Request) -> Hits:
        wanted = await _parsed(request, rest.QueryRequestBatch)
        name = request.match_info["name"]
        return [{"points": await self.core.query(name, one)} for one in wanted.searches]

    async def _count(self, request: web.Request) -> dict[str, int]:
        wanted = await _parsed(request, rest.CountRequest)
        return {"count": await self.core.count(request.match_info["name"], wanted)}

    async def _facet(self, request: web.Request) -> dict[str, Hits]:
        wanted = await _parsed(request, rest.FacetRequest)
        return {"hits": await self.core.facet(request.match_info["name"], wanted)}

    async def _retrieve(self, request: web.Request) -> Hits:
        wanted = await _parsed(request, rest.PointRequest)
        return await self.core.retrieve(request.match_info["name"], wanted)


@asynccontextmanager
async def serving(core: Core, **options: Any) -> AsyncIterator[QdrantServer]:
    """Serve on a free port of loopback, in this loop."""
    server = QdrantServer(core, **options)
    try:
        async with serving_app(server.app()) as server.url:
            yield server
    finally:
        await core.close()


@contextmanager
def served(core: Core, **options: Any) -> Iterator[QdrantServer]:
    """Like `serving`, in a thread of its own, for engines in other processes."""
    started: Future[tuple[QdrantServer, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def run() -> None:
        async with serving(core, **options) as server:
            ended = asyncio.Event()
            started.set_result((server, asyncio.get_running_loop(), ended))
            await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()), name="qdrant", daemon=True)
    thread.start()
    server, loop, ended = started.result(START_SECONDS)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()


@contextmanager
def qdrant(core: EdgeCore | None = None) -> Iterator[QdrantSettings]:
    """Yield the settings of a server: the real one that `QDRANT_URL` names, or a small one around `core`."""
    if not REAL_URL:
        with served(core or EdgeCore()) as server:
            yield server.settings(timeout=QdrantSettings().timeout)  # the wait for a stopped server
        return
    settings = QdrantSettings(url=REAL_URL, api_key=REAL_KEY, collection=f"test-{uuid4().hex}")
    try:
        yield settings
    finally:
        asyncio.run(_drop(settings))


async def _drop(settings: QdrantSettings) -> None:
    index = QdrantIndex(settings)
    await index.drop()
    await index.close()


def environment_of(settings: QdrantSettings) -> dict[str, str]:
    """Environment variables that make an engine in another process use this server."""
    return {
        "VECTOR_DB_TYPE": "qdrant",
        "QDRANT_URL": settings.url,
        "QDRANT_API_KEY": settings.api_key,
        "QDRANT_COLLECTION": settings.collection,
        "QDRANT_TIMEOUT": str(settings.timeout),
    }


def _answering(result: Callable[[web.Request], Awaitable[object]]) -> Handler:
    """A handler that returns a result as Qdrant does, or its error for a bad request."""

    async def handler(request: web.Request) -> web.StreamResponse:
        try:
            return web.json_response({"result": await result(request), "status": "ok", "time": 0.0})
        except KeyError as error:
            return _refused(404, f"Not found: Collection `{error.args[0]}` doesn't exist!")
        except ValidationError as error:
            return _refused(400, f"Format error in JSON body: {error}")

    return handler


async def _parsed(request: web.Request, model: type[M]) -> M:
    return model.model_validate_json(await request.read())


def _done(request: web.Request, *, ordered: bool = True) -> dict[str, Any]:
    assert request.query["wait"] == "true", "a write that nobody waits for may be found late"
    assert not ordered or request.query["ordering"] == "strong", "writes to the mark are compared"
    return {"operation_id": 0, "status": "completed"}


def _refused(status: int, why: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"status": {"error": why}, "time": 0.0}, status=status, headers=headers)
