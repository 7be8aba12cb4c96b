"""Subscriptions to documents, in the form of each era."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client
from mcp.client.subscriptions import ResourceUpdated

from kb_contracts.access.key_file import KeyFile, rights_of
from kb_contracts.api import models as m
from kb_server.hosting.http import build_app
from kb_server.hosting.toolset_server import hosted, mount
from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.toolsets import build_toolset
from kb_simulator import AfterTime, FailAt, Stuck
from kb_simulator.engine import submissions
from mcp_aiohttp.authentication import Authenticator, AuthenticatorUnavailable
from mcp_aiohttp.options import HostingOptions
from mcp_aiohttp.protocol.caller import Identity
from mcp_aiohttp.protocol.kernel import HostedServer
from mcp_aiohttp.protocol.subscriptions import SubscriptionLimits
from tests.protocol.conftest import Serve, Served, Start, serving, stdio_environment
from tests.protocol.sockets import CLOSE, INITIALIZED, Bare, Connect, Wire, frame, given_up, text_frame
from tests.protocol.sockets import connect as connect
from tests.protocol.test_official_client import over_websocket
from tests.support.eventually import eventually_async
from tests.support.mcp_messages import (
    LATEST_HANDSHAKE,
    MODERN,
    PLAIN,
    initialize,
    modern,
    modern_headers,
    request,
)
from tests.support.patience import ANSWER_SECONDS
from tests.support.simulated_engine import SimulatedEngine

PATH = "/watched"
LIMITS = SubscriptionLimits(resources=3, of_client=2, streams=2, seconds=0.01)
UPDATED, ACKNOWLEDGED = "notifications/resources/updated", "notifications/subscriptions/acknowledged"
NO_JOB = "kb://jobs/8f0c5d7e-9a53-4f1c-8e2b-0b8f3f2f9b11"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


@pytest.fixture
async def services(engine: SimulatedEngine, tmp_path: Path) -> AsyncIterator[Services]:
    async with Services(ServerSettings(engine_url=engine.url, home=tmp_path)) as services:
        yield services


@pytest.fixture
def watched(services: Services) -> HostedServer:
    return hosted(build_toolset("kb", services), subscription_limits=LIMITS)


@pytest.fixture
async def served(serve: Serve, services: Services, watched: HostedServer) -> Served:
    return await serve(build_toolset("textfile", services), servers={PATH: watched})


def note(engine: SimulatedEngine, text: str = "Granite is hard.", **members: Any) -> str:
    return f"kb://documents/{engine.add('collection:memory', text=text, **members).id}"


def edit(engine: SimulatedEngine, uri: str, title: str) -> None:
    engine.namespace.clock.advance(1)
    engine.edit(int(uri.rpartition("/")[2]), title)


async def remove(engine: SimulatedEngine, uri: str) -> None:
    engine.namespace.clock.advance(1)
    async with httpx.AsyncClient(base_url=engine.url, timeout=ANSWER_SECONDS, verify=False) as http:
        (await http.delete(f"/api/v1/documents/{uri.rpartition('/')[2]}")).raise_for_status()


def subscribe(uri: str, request_id: Any = "s", method: str = "resources/subscribe") -> dict[str, Any]:
    return request(method, {"uri": uri}, request_id)


def listen(*uris: str, request_id: Any = "l", **more: Any) -> dict[str, Any]:
    wanted = {"resourceSubscriptions": list(uris), **more}
    return modern(request("subscriptions/listen", {"notifications": wanted}, request_id))


def looks(engine: SimulatedEngine) -> int:
    return len(engine.journal.requests("getStatus"))


async def looked(engine: SimulatedEngine, times: int = 3) -> None:
    """Wait until the server has polled a few more times."""
    before = looks(engine)
    await until(lambda: looks(engine) - before, lambda more: more >= times)


async def until(see: Callable[[], Any], good: Callable[[Any], bool]) -> None:
    await eventually_async(see, good, what="it")


# --- the handshake versions, with lasting connections ------------------------------------------------


async def greeted(connect: Connect, served: Served) -> Wire:
    wire = await connect(served, path=PATH)
    announced = (await wire.ask(initialize(LATEST_HANDSHAKE)))["result"]["capabilities"]["resources"]
    assert announced == {"subscribe": True, "listChanged": False}
    await wire.send(INITIALIZED)
    return wire


async def test_a_client_hears_of_a_change_and_of_the_end(
    served: Served, engine: SimulatedEngine, connect: Connect
) -> None:
    uri, other = note(engine), note(engine, "Chalk is not.")
    wire = await greeted(connect, served)
    assert (await wire.ask(subscribe(uri)))["result"] == {}
    await looked(engine)
    edit(engine, other, "Chalk")
    await looked(engine)
    edit(engine, uri, "Stones")
    told = await wire.receive()
    assert (told["method"], told["params"]["uri"]) == (UPDATED, uri)
    await remove(engine, uri)
    assert (await wire.receive())["params"]["uri"] == uri
    assert (await wire.ask(subscribe(uri, method="resources/unsubscribe")))["result"] == {}


async def test_a_client_that_left_or_unsubscribed_hears_nothing_and_costs_nothing(
    served: Served, engine: SimulatedEngine, connect: Connect
) -> None:
    uri = note(engine)
    leaving, staying = await greeted(connect, served), await greeted(connect, served)
    await leaving.ask(subscribe(uri))
    await staying.ask(subscribe(uri))
    await staying.ask(subscribe(uri, method="resources/unsubscribe"))
    await staying.ask(
        subscribe(uri, method="resources/unsubscribe")
    )  # unsubscribing twice has no further effect
    await looked(engine)
    await leaving.socket.close()

    seen: list[int] = []

    def at_rest() -> bool:
        seen.append(looks(engine))
        return seen[-1:] * 12 == seen[-12:]

    await until(at_rest, bool)
    edit(engine, uri, "Stones")
    assert (await staying.ask(request("ping")))["id"] == "1"


async def test_a_subscription_that_begins_after_the_end_of_its_connection_leaves_nothing(
    served: Served, engine: SimulatedEngine, watched: HostedServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    bare = await Bare.open(served, PATH)
    bare.writer.write(text_frame(initialize(LATEST_HANDSHAKE)))
    await bare.message()
    bare.writer.write(text_frame(subscribe(note(engine))) + frame(CLOSE, (1000).to_bytes(2)))
    await until(lambda: caplog.messages, lambda told: "A WebSocket ended" in told)
    assert watched._subscriptions is not None
    assert watched._subscriptions._clients == {}
    bare.writer.close()


async def test_subscribing_to_an_unknown_resource_is_refused(
    served: Served, engine: SimulatedEngine, connect: Connect
) -> None:
    wire = await greeted(connect, served)
    for uri in (
        "kb://documents/99",
        "kb://documents/x",
        "file:///etc/passwd",
        "",
        "kb://sources/a/b",
        NO_JOB,
    ):
        refused = (await wire.ask(subscribe(uri)))["error"]
        assert (refused["code"], refused["data"]["error_type"]) == (-32602, "resource_not_found")


async def test_a_source_and_a_range_can_be_watched(
    served: Served, engine: SimulatedEngine, connect: Connect
) -> None:
    uri = note(engine, source_path="stones.md")
    wire = await greeted(connect, served)
    both = {"kb://sources/memory/stones.md", f"{uri}?from=1&to=5"}
    for each in both:
        await wire.ask(subscribe(each))
    edit(engine, uri, "Stones")
    assert {(await wire.receive())["params"]["uri"] for _ in both} == both


async def test_so_much_is_watched_and_no_more(
    served: Served, engine: SimulatedEngine, connect: Connect
) -> None:
    uris = [note(engine, f"note {number}") for number in range(4)]
    first, second = await greeted(connect, served), await greeted(connect, served)
    for uri in (*uris[:2], uris[0]):
        assert "result" in await first.ask(subscribe(uri))
    refused = (await first.ask(subscribe(uris[2])))["error"]
    assert (refused["data"]["error_type"], refused["data"]["limit"]) == ("too_many_subscriptions", 2)
    assert "result" in await second.ask(subscribe(uris[2]))
    refused = (await second.ask(subscribe(uris[3])))["error"]
    assert (refused["data"]["error_type"], refused["data"]["limit"]) == ("too_many_subscriptions", 3)
    await first.ask(subscribe(uris[0], method="resources/unsubscribe"))
    assert "result" in await second.ask(subscribe(uris[3]))


async def test_an_engine_that_fails_for_a_while_loses_no_change(
    served: Served, engine: SimulatedEngine, connect: Connect
) -> None:
    uri = note(engine)
    wire = await greeted(connect, served)
    await wire.ask(subscribe(uri))
    await looked(engine)
    engine.arm("internal_error", "getDocument", times=4)  # more than the number of attempts of the client
    edit(engine, uri, "Stones")
    assert (await wire.receive())["params"]["uri"] == uri


async def test_over_http_there_is_nothing_that_could_carry_a_notification(
    served: Served, engine: SimulatedEngine
) -> None:
    uri = note(engine)
    announced = (await served.post(initialize(LATEST_HANDSHAKE), path=PATH)).json()["result"]["capabilities"]
    assert announced["resources"]["subscribe"] is False
    headers = {**PLAIN, "MCP-Protocol-Version": LATEST_HANDSHAKE}
    for method in ("resources/subscribe", "resources/unsubscribe"):
        refused = (await served.post(subscribe(uri, method=method), headers, PATH)).json()["error"]
        assert refused["data"]["error_type"] == "no_subscriptions"
        assert "WebSocket" in refused["message"]


# --- 2026-07-28: a stream ----------------------------------------------------------------------------


@asynccontextmanager
async def listening(
    served: Served, message: dict[str, Any], headers: dict[str, str] | None = None, path: str = PATH
) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    headers = headers or modern_headers(message)
    async with served.http.stream("POST", path, json=message, headers=headers) as response:
        assert response.status_code == 200

        async def frames() -> AsyncIterator[dict[str, Any]]:
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))

        yield frames()


async def test_a_listening_stream_reports_updates_of_its_resource_only(
    served: Served, engine: SimulatedEngine
) -> None:
    uri, other = note(engine), note(engine, "Chalk is not.")
    message = listen(uri, "kb://documents/99", toolsListChanged=True, resourcesListChanged=True)
    async with asyncio.timeout(ANSWER_SECONDS), listening(served, message) as frames:
        opened = await anext(frames)
        assert opened["method"] == ACKNOWLEDGED
        assert opened["params"]["notifications"] == {"resourceSubscriptions": [uri]}
        assert opened["params"]["_meta"][SUBSCRIPTION] == "l"
        edit(engine, other, "Chalk")
        await looked(engine)
        edit(engine, uri, "Stones")
        told = await anext(frames)
        assert (told["method"], told["params"]["uri"]) == (UPDATED, uri)
        assert told["params"]["_meta"][SUBSCRIPTION] == "l"
        await remove(engine, uri)
        assert (await anext(frames))["params"]["uri"] == uri


async def test_the_server_announces_only_the_notifications_that_it_sends(served: Served) -> None:
    discovered = await served.post(modern(request("server/discover")), path=PATH)
    found = discovered.json()["result"]
    assert found["capabilities"]["resources"] == {"subscribe": True, "listChanged": False}
    assert found["capabilities"]["tools"]["listChanged"] is False
    assert found["supportedVersions"] == [MODERN]
    assert found["instructions"]


async def test_streams_end_with_their_client_and_are_bounded(served: Served, engine: SimulatedEngine) -> None:
    uri = note(engine)
    async with asyncio.timeout(ANSWER_SECONDS), listening(served, listen(uri)) as one:
        await anext(one)
        async with listening(served, listen(uri)) as two:
            await anext(two)
            refused = await served.post(listen(uri), path=PATH)
            error = refused.json()["error"]
            assert (error["data"]["error_type"], error["data"]["limit"]) == ("too_many_streams", 2)
            assert "End one, or try again later." in error["message"]
    too_many = await served.post(listen(*(f"kb://documents/{number}" for number in range(3))), path=PATH)
    assert too_many.json()["error"]["data"]["error_type"] == "too_many_subscriptions"

    async def free() -> bool:
        async with listening(served, listen(uri)) as three:
            return bool((await anext(three)).get("method") == ACKNOWLEDGED)

    await eventually_async(free, bool, what="room for a stream")


async def test_a_stream_ends_with_an_answer_where_the_server_stops(
    served: Served, engine: SimulatedEngine
) -> None:
    async with asyncio.timeout(ANSWER_SECONDS), listening(served, listen(note(engine))) as frames:
        await anext(frames)
        served.stop.set()
        rest = [frame async for frame in frames]
    assert [frame["id"] for frame in rest] == ["l"]
    assert rest[0]["result"]["resultType"] == "complete"


async def test_a_client_that_takes_no_stream_is_refused(served: Served) -> None:
    message = listen("kb://documents/1")
    headers = {**modern_headers(message), "Accept": "application/json"}
    refused = await served.post(message, headers, PATH)
    assert (refused.status_code, refused.json()["error"]["data"]["error_type"]) == (406, "not_acceptable")


async def test_a_stream_runs_beside_calls_on_a_websocket(
    served: Served, engine: SimulatedEngine, connect: Connect
) -> None:
    uri = note(engine)
    wire = await connect(served, path=PATH)
    assert (await wire.ask(listen(uri)))["method"] == ACKNOWLEDGED
    assert "tools" in (await wire.ask(modern(request("tools/list"))))["result"]
    edit(engine, uri, "Stones")
    assert (await wire.receive())["params"]["uri"] == uri
    await wire.send(given_up("l"))
    assert "tools" in (await wire.ask(modern(request("tools/list", request_id=2))))["result"]
    edit(engine, uri, "Granite")
    assert (await wire.ask(listen(uri, request_id=3)))["method"] == ACKNOWLEDGED
    served.stop.set()
    assert (await wire.receive())["id"] == 3
    assert await wire.closed() == 1001


# --- keys: checked when a change is seen --------------------------------------------------------------


@pytest.fixture
async def keys(tmp_path: Path) -> KeyFile:
    return KeyFile(ServerSettings(home=tmp_path).keys_file)


def reader(keys: KeyFile, name: str, *collections: str) -> str:
    """Return the token of a new key that reads `collections`, or everything."""
    return keys.create(name, rights=rights_of(["read"]), collections=collections or None)[1]


@asynccontextmanager
async def guarded(
    engine: SimulatedEngine, home: Path, authenticator: Authenticator | None = None
) -> AsyncIterator[Served]:
    """Serve with `authenticator`, or by default with the file of keys."""
    async with Services(ServerSettings(engine_url=engine.url, home=home)) as services:
        watched = hosted(build_toolset("kb", services), subscription_limits=LIMITS)
        options = HostingOptions(authenticator=authenticator or services.callers)
        mounts = mount([build_toolset("textfile", services)], ["textfile"])
        app = build_app(services.settings, mounts, servers={PATH: watched}, options=options)
        async with serving(app) as served:
            yield served


@pytest.fixture
async def keyed(keys: KeyFile, engine: SimulatedEngine, tmp_path: Path) -> AsyncIterator[Served]:
    async with guarded(engine, tmp_path) as served:
        yield served


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def move(engine: SimulatedEngine, uri: str, collection: str) -> None:
    engine.namespace.clock.advance(1)
    engine.set_tags(f"collection:{collection}", document_id=int(uri.rpartition("/")[2]))


async def watching(connect: Connect, served: Served, token: str, *uris: str) -> Wire:
    wire = await connect(served, path=PATH, headers=bearer(token))
    await wire.greet(LATEST_HANDSHAKE)
    for uri in uris:
        assert "result" in await wire.ask(subscribe(uri))
    return wire


async def test_a_document_that_leaves_the_scope_of_a_key_is_reported_as_removed(
    keyed: Served, keys: KeyFile, engine: SimulatedEngine, connect: Connect
) -> None:
    leaving, staying = note(engine), note(engine, "Chalk is not.")
    narrow = reader(keys, "narrow", "memory")
    wide = await watching(connect, keyed, reader(keys, "wide"), leaving)
    wire = await watching(connect, keyed, narrow, leaving, staying)
    headers = bearer(narrow) | modern_headers(listen(leaving, staying))
    async with asyncio.timeout(ANSWER_SECONDS), listening(keyed, listen(leaving, staying), headers) as frames:
        await anext(frames)
        move(engine, leaving, "secret")
        for told in (await wire.receive(), await anext(frames), await wide.receive()):
            assert told["params"]["uri"] == leaving
        edit(engine, leaving, "Secret")
        assert (await wide.receive())["params"]["uri"] == leaving
        edit(engine, staying, "Chalk")
        assert (await wire.receive())["params"]["uri"] == staying
        assert (await anext(frames))["params"]["uri"] == staying


@pytest.mark.parametrize("end", ["revoked", "may not read"])
async def test_a_key_that_opens_nothing_any_more_is_sent_nothing(
    keyed: Served, keys: KeyFile, engine: SimulatedEngine, connect: Connect, end: str
) -> None:
    uri = note(engine)
    token = reader(keys, "ci")
    wide = await watching(connect, keyed, reader(keys, "wide"), uri)
    wire = await watching(connect, keyed, token, uri)
    headers = bearer(token) | modern_headers(listen(uri))
    async with asyncio.timeout(ANSWER_SECONDS), listening(keyed, listen(uri), headers) as frames:
        await anext(frames)
        if end == "revoked":
            keys.revoke("ci")
        else:
            file = keys.path
            await asyncio.to_thread(file.write_text, file.read_text().replace('"read"', '"write"', 1))
        edit(engine, uri, "Stones")
        assert (await wide.receive())["params"]["uri"] == uri
        rest = [frame async for frame in frames]
        assert [frame["id"] for frame in rest] == ["l"], "it ends with its answer"
    if end == "revoked":
        await wire.send(request("ping"))
        assert await wire.closed() == 1008
    else:
        assert (await wire.ask(request("ping")))["id"] == "1"


class Outage:
    name = "token"
    is_needed = True
    is_out = False

    async def authenticate(self, token: str) -> Identity:
        if self.is_out:
            raise AuthenticatorUnavailable("The issuer is out of reach.", retry_after=1.0)
        return Identity(token)


async def test_a_change_during_an_outage_of_the_authenticator_is_reported_afterwards(
    engine: SimulatedEngine, tmp_path: Path, connect: Connect
) -> None:
    authenticator, uri = Outage(), note(engine)
    async with guarded(engine, tmp_path, authenticator) as served:
        wire = await watching(connect, served, "me", uri)
        await looked(engine)
        authenticator.is_out = True
        edit(engine, uri, "Stones")
        await looked(engine)
        authenticator.is_out = False
        assert (await wire.receive())["params"]["uri"] == uri


async def test_keys_of_one_reach_cost_one_look(
    keyed: Served, keys: KeyFile, engine: SimulatedEngine, connect: Connect
) -> None:
    uri = note(engine)
    tokens = [reader(keys, name, "memory") for name in ("a", "b", "c")]
    wires = [await watching(connect, keyed, token, uri) for token in tokens]
    await looked(engine)
    before = len(engine.journal.requests("getDocument"))
    edit(engine, uri, "Stones")
    for wire in wires:
        assert (await wire.receive())["params"]["uri"] == uri
    assert len(engine.journal.requests("getDocument")) == before + 1


# --- jobs --------------------------------------------------------------------------------------------


def job(engine: SimulatedEngine, collection: str = "memory") -> str:
    """Accept a note as a job of the current policy, and return its URI."""
    tags = [f"collection:{collection}"]
    request = m.NoteRequest(text=f"note {len(engine.state.jobs)}", title="Stones", tags=tags)
    return f"kb://jobs/{engine.state.accept(submissions.note('stones', request)).id}"


async def read_job(wire: Wire, uri: str) -> dict[str, Any]:
    (content,) = (await wire.ask(request("resources/read", {"uri": uri}, "r")))["result"]["contents"]
    assert (content["uri"], content["mimeType"]) == (uri, "application/json")
    found: dict[str, Any] = json.loads(content["text"])
    return found


async def test_the_steps_of_a_job_and_its_end_are_reported(
    served: Served, engine: SimulatedEngine, connect: Connect
) -> None:
    engine.state.policy = AfterTime(seconds=1_000)
    uri = job(engine)
    wire = await greeted(connect, served)
    assert (await wire.ask(subscribe(uri)))["result"] == {}
    async with asyncio.timeout(ANSWER_SECONDS), listening(served, listen(uri)) as frames:
        opened = await anext(frames)
        assert opened["params"]["notifications"] == {"resourceSubscriptions": [uri]}
        for _ in range(2):
            engine.namespace.clock.advance(300)
            for told in (await wire.receive(), await anext(frames)):
                assert (told["method"], told["params"]["uri"]) == (UPDATED, uri)
    before = await read_job(await greeted(connect, served), uri)
    assert (before["status"], before["collection"]) == ("running", "memory")
    assert before["progress"] >= 0.6
    engine.namespace.clock.advance(1_000)
    while (told := await wire.receive())["method"] == UPDATED:
        found = await read_job(await greeted(connect, served), told["params"]["uri"])
        if found["status"] == "completed":
            break
    assert found["document_id"] == 1


async def test_a_failed_job_that_is_retried_is_reported(
    served: Served, engine: SimulatedEngine, connect: Connect
) -> None:
    engine.state.policy = FailAt()
    uri = job(engine)
    wire = await greeted(connect, served)
    assert (await read_job(wire, uri))["status"] == "failed"
    await wire.ask(subscribe(uri))
    await looked(engine)
    engine.state.policy = Stuck()
    async with httpx.AsyncClient(base_url=engine.url, timeout=ANSWER_SECONDS, verify=False) as http:
        (await http.post(f"/api/v1/jobs/{uri.rpartition('/')[2]}/retry")).raise_for_status()
    assert (await wire.receive())["params"]["uri"] == uri


async def test_a_job_outside_the_access_scope_of_a_key_does_not_exist(
    keyed: Served, keys: KeyFile, engine: SimulatedEngine, connect: Connect
) -> None:
    engine.state.policy = AfterTime(seconds=1_000)
    secret, own = job(engine, "secret"), job(engine)
    narrow = reader(keys, "narrow", "memory")
    wide = await watching(connect, keyed, reader(keys, "wide"), secret)
    wire = await watching(connect, keyed, narrow, own)
    for method in ("resources/subscribe", "resources/read"):
        refused = (await wire.ask(subscribe(secret, method=method)))["error"]
        assert (refused["code"], refused["data"]["error_type"]) == (-32602, "resource_not_found")
    headers = bearer(narrow) | modern_headers(listen(secret, own))
    async with asyncio.timeout(ANSWER_SECONDS), listening(keyed, listen(secret, own), headers) as frames:
        opened = await anext(frames)
        assert opened["params"]["notifications"] == {"resourceSubscriptions": [own]}
        engine.namespace.clock.advance(300)
        assert (await wide.receive())["params"]["uri"] == secret
        for told in (await wire.receive(), await anext(frames)):
            assert told["params"]["uri"] == own


async def test_jobs_are_not_looked_at_for_documents(
    served: Served, engine: SimulatedEngine, connect: Connect
) -> None:
    engine.state.policy = AfterTime(seconds=1_000)
    uri, running = note(engine), job(engine)
    wire = await greeted(connect, served)
    await wire.ask(subscribe(uri))
    await looked(engine)
    before = len(engine.journal.requests("getDocument"))
    await looked(engine)
    assert len(engine.journal.requests("getDocument")) == before
    await wire.ask(subscribe(running))
    await wire.ask(subscribe(running, method="resources/unsubscribe"))
    await looked(engine)
    jobs = len(engine.journal.requests("getJob"))
    await looked(engine)
    assert len(engine.journal.requests("getJob")) == jobs


@pytest.mark.process
async def test_a_stream_over_stdio_ends_with_its_client(
    engine: SimulatedEngine, start: Start, tmp_path: Path
) -> None:
    uri = note(engine)
    environment = {**stdio_environment(), "KB_ENGINE_URL": engine.url, "KB_HOME": str(tmp_path)}
    process = await start(command=("-m", "kb_cli.main", "stdio"), environment=environment)
    assert (await process.ask(listen(uri)))["method"] == ACKNOWLEDGED
    edit(engine, uri, "Stones")
    assert (await process.receive())["params"]["uri"] == uri
    status, out, _ = await process.end()
    assert status == 0
    assert json.loads(out)["id"] == "l"


@pytest.mark.parametrize("way", ["http", "websocket"])
async def test_the_official_client_listens(served: Served, engine: SimulatedEngine, way: str) -> None:
    uri = note(engine)
    url = f"{served.base}{PATH}"
    transport: Any = url if way == "http" else over_websocket(url)
    async with asyncio.timeout(ANSWER_SECONDS), Client(transport, mode=MODERN) as client:
        async with client.listen(resource_subscriptions=[uri], tools_list_changed=True) as stream:
            assert stream.honored.resource_subscriptions == [uri]
            assert not stream.honored.tools_list_changed
            edit(engine, uri, "Stones")
            assert await anext(aiter(stream)) == ResourceUpdated(uri)
        engine.state.policy = AfterTime(seconds=1_000)
        async with client.listen(resource_subscriptions=[uri := job(engine)]) as stream:
            engine.namespace.clock.advance(300)
            assert await anext(aiter(stream)) == ResourceUpdated(uri)
        assert (await client.list_tools()).tools
