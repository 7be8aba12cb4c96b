"""The caller of an engine's request, and engines without access scopes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from kb_contracts.access.reach import ACCESS, Access, Reach, Right, access_from
from kb_contracts.api import models as m
from kb_contracts.api.operations import CREATE_JOB, GET_STATUS, LIST_TAGS, TagsQuery
from kb_server.access.grants import GRANT, Grant
from kb_server.engine_client.client import HttpEngine
from kb_server.engine_client.errors import EngineFault, EngineTooOld, Refused
from kb_server.engine_client.http1 import RawResponse
from kb_server.engine_client.ragler_http import HttpRagler
from kb_server.engine_client.transport import EngineRequest
from kb_server.tool import ToolError
from tests.support.eventually import eventually_async

READ: frozenset[Right] = frozenset({"read"})
TEAM = Access("team", READ, Reach(frozenset({"collection:a"})))


@dataclass
class Foreign:
    """An engine by another author, with any list of features."""

    features: list[str] | None = None
    requests: list[web.Request] = field(default_factory=list)
    url: str = ""
    answers: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while it responds to unknown requests."""

    def __post_init__(self) -> None:
        self.answers.set()

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        if request.path == "/api/v1/status":
            features = {} if self.features is None else {"features": self.features}
            return web.json_response({"version": "v3.0.0", **features})
        if request.path == "/api/v1/tags":
            return web.json_response({"tags": [], "total": 0, "offset": 0, "limit": 1})
        if request.path == "/collections":
            return web.json_response({"collections": []})
        await self.answers.wait()
        problem = {"type": "x", "title": "x", "status": 403, "code": "forbidden", "detail": "Not for you."}
        return web.json_response(problem, status=403, content_type="application/problem+json")

    def headers_of(self, path: str) -> list[str | None]:
        return [each.headers.get(ACCESS) for each in self.requests if each.path == path]


@pytest.fixture
async def foreign() -> AsyncIterator[Foreign]:
    engine = Foreign()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", engine.answer)
    async with TestServer(app) as server:
        engine.url = str(server.make_url("")).rstrip("/")
        yield engine


@pytest.fixture
async def client(foreign: Foreign) -> AsyncIterator[HttpEngine]:
    client = HttpEngine(foreign.url, "secret")
    yield client
    await client.close()


@contextmanager
def on_behalf(grant: Grant) -> Iterator[None]:
    token = GRANT.set(grant)
    try:
        yield
    finally:
        GRANT.reset(token)


async def list_tags(client: HttpEngine) -> None:
    await client.call(LIST_TAGS, query=TagsQuery())


async def test_restricted_and_single_callers_are_named_to_the_engine(
    foreign: Foreign, client: HttpEngine
) -> None:
    foreign.features = ["other", "access"]
    await list_tags(client)
    with on_behalf(Grant(Access("KB_MCP_API_KEY"))):
        await list_tags(client)
    with on_behalf(Grant(TEAM)):
        await list_tags(client)
    with on_behalf(Grant(Access("reader", READ))):
        await list_tags(client)
    with on_behalf(Grant(Access("ann"), is_one_caller=True)):
        await list_tags(client)
    sent = foreign.headers_of("/api/v1/tags")
    assert sent[:2] == [None, None]
    assert [access_from(each or "") for each in sent[2:]] == [TEAM, Access("reader", READ), Access("ann")]
    assert sent[-1] == '{"name": "ann"}'
    assert foreign.headers_of("/api/v1/status") == [None], "what the engine is, is asked for nobody"


@pytest.mark.parametrize("features", [None, [], ["versions"]])
async def test_an_engine_that_keeps_nobody_apart_serves_no_key_with_a_reach(
    foreign: Foreign, client: HttpEngine, features: list[str] | None
) -> None:
    foreign.features = features
    with on_behalf(Grant(TEAM)):
        with pytest.raises(EngineTooOld, match="announce"):
            await client.call(LIST_TAGS)
        with pytest.raises(EngineTooOld, match="announce"):
            await client.call(GET_STATUS)
    assert foreign.headers_of("/api/v1/tags") == []
    with on_behalf(Grant(Access("reader", READ))):
        await list_tags(client)


async def test_a_ragler_backend_without_scopes_refuses_restricted_keys(foreign: Foreign) -> None:
    backend = HttpRagler(foreign.url, "secret")
    with on_behalf(Grant(TEAM)), pytest.raises(EngineTooOld):
        await backend.collections()
    assert foreign.requests == []
    await backend.collections()
    await backend.close()


async def test_raglers_backend_that_is_the_engine_learns_for_whom(
    foreign: Foreign, client: HttpEngine
) -> None:
    foreign.features = ["access"]
    backend = HttpRagler(foreign.url, lambda: "found", ensure_reach=client.ensure_reach)
    with on_behalf(Grant(TEAM)):
        await backend.collections()
    assert [access_from(each or "") for each in foreign.headers_of("/collections")] == [TEAM]
    assert foreign.requests[-1].headers["Authorization"] == "Bearer found"
    await backend.close()


async def test_a_refusal_about_the_caller_is_not_one_of_the_servers_key(
    foreign: Foreign, client: HttpEngine
) -> None:
    with pytest.raises(Refused) as refused:
        await client.call(CREATE_JOB, body=m.NoteRequest(text="x"))
    assert (refused.value.reason, refused.value.detail) == ("forbidden", "Not for you.")


class Counted:
    """A meter that records counts, and refuses more than `most`."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken: list[tuple[int, int]] = []

    def count_call(self, name: str, most: int) -> None:
        raise AssertionError

    def take(self, name: str, quotas: object, documents: int, size: int) -> None:
        if size > self.most:
            raise ToolError("quota_exceeded", "too much")
        self.taken.append((documents, size))


async def test_a_refused_submission_returns_its_quota(foreign: Foreign, client: HttpEngine) -> None:
    meter = Counted(10)
    with on_behalf(Grant(Access("ci"), meter=meter)):
        await list_tags(client)
        assert meter.taken == []
        with pytest.raises(EngineFault):
            await client.call(CREATE_JOB, body=m.NoteRequest(text="größe"))
        assert meter.taken == [(1, 7), (-1, -7)]
        before = len(foreign.requests)
        with pytest.raises(ToolError):
            await client.call(CREATE_JOB, body=m.NoteRequest(text="x" * 11))
        assert len(foreign.requests) == before


class Unconnected:
    """An exchange that never gets a connection."""

    async def exchange(self, request: EngineRequest) -> RawResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None:
        pass


async def cancelled(client: HttpEngine, begun: Callable[[], bool], meter: Counted) -> None:
    """Add a note, and cancel the call once it has `begun`."""
    with on_behalf(Grant(Access("ci"), meter=meter)):
        adding = asyncio.create_task(client.call(CREATE_JOB, body=m.NoteRequest(text="x")))
    await eventually_async(begun)
    adding.cancel()
    await asyncio.wait([adding])


async def test_a_call_cancelled_before_sending_returns_its_quota(foreign: Foreign) -> None:
    client, meter = HttpEngine(foreign.url, exchange=Unconnected()), Counted(10)
    await cancelled(client, lambda: bool(meter.taken), meter)
    assert meter.taken == [(1, 1), (-1, -1)]
    await client.close()


async def test_a_call_cancelled_after_sending_keeps_its_quota(foreign: Foreign, client: HttpEngine) -> None:
    meter = Counted(10)
    foreign.answers.clear()
    await cancelled(client, lambda: "/api/v1/jobs" in [each.path for each in foreign.requests], meter)
    assert meter.taken == [(1, 1)]
    foreign.answers.set()
