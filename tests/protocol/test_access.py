"""A server with keys and an OAuth issuer on a socket: tools for each caller, and refusals."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from aiohttp.test_utils import TestServer

from kb_config.logs import JsonFormatter
from kb_contracts.access.keys import Quotas
from kb_server.observability.redaction import sanitised
from mcp_aiohttp.authentication import WrongTokens
from tests.protocol.house import House, Open, houses
from tests.support.mcp_messages import LATEST_HANDSHAKE, MODERN, call, request
from tests.support.tokens import BAD, Issuer
from tests.support.tool_table import TOOLS

READERS = {tool for tool, row in TOOLS["kb"].items() if row.right == "read"}


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Open]:
    async with houses(tmp_path) as start:
        yield start


@pytest.fixture
async def house(opened: Open) -> House:
    return await opened()


# --- keys ----------------------------------------------------------------------------------------


async def test_without_a_key_everybody_is_let_in_and_the_first_one_shuts_the_door(house: House) -> None:
    assert await house.tools("") > READERS
    token = house.key()
    response = await house.served.post(request("tools/list"))
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert await house.tools(token) > READERS
    house.keys.revoke("ci")
    response = await house.served.post(
        request("tools/list"), {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    )
    assert (response.status_code, "was revoked" in response.text) == (401, True)


@pytest.mark.requirement("R44")
@pytest.mark.parametrize("era", [MODERN, LATEST_HANDSHAKE])
async def test_each_key_is_given_the_tools_that_it_may_use(house: House, era: str) -> None:
    """The fast path answers the second list, and must not confuse the alternating callers."""
    everything = house.key("all", "read write delete administer")
    reader, writer = house.key("reader"), house.key("writer", "read write")
    knowledge = house.key("knowledge", "read delete", toolsets=("knowledge",))
    for _ in range(2):
        assert {"kb_addnote", "kb_delete", "knowledge-clear"} < await house.tools(everything, era=era)
        assert await house.tools(reader, era=era, path="/mcp/kb") == READERS
        assert "kb_addnote" in await house.tools(writer, era=era)
        assert not {"kb_delete", "knowledge-clear"} & await house.tools(writer, era=era)
        found = await house.tools(knowledge, era=era)
        assert "knowledge-remove" in found
        assert {name.partition("-")[0] for name in found} == {"knowledge"}
        assert await house.tools(knowledge, era=era, path="/mcp/kb") == set()


async def test_a_tool_that_a_key_may_not_use_is_refused_and_asks_nobody(house: House) -> None:
    reader = house.key("reader", toolsets=("kb", "kb-extra"))
    refused = (await house.call(reader, "kb_addnote", text="x"))["refused"]
    assert refused == {"error": "forbidden", "message": "This key may not write. Use a key with this right."}
    refused = (await house.call(reader, "kb_delete", document_id=1))["refused"]
    assert refused["message"] == "This key may not delete. Use a key with this right."
    refused = (await house.call(reader, "knowledge-status"))["refused"]
    assert refused["message"] == "This key may not use the toolset knowledge. Use a key that includes it."
    assert house.engine.journal.requests() == []
    assert "refused" not in await house.call(reader, "kb_status")


async def test_the_text_file_is_in_no_collection_and_is_for_keys_that_name_it(house: House) -> None:
    path, tool = "/mcp/textfile", "get_kb_content"
    for token in (house.key("all"), house.key("named", collections=("memory",), toolsets=("textfile",))):
        assert tool in await house.tools(token, path=path)
        assert "refused" not in await house.call(token, tool, path)
    narrow = house.key("narrow", collections=("memory",))
    assert await house.tools(narrow, path=path) == set()
    assert (await house.call(narrow, tool, path))["refused"]["error"] == "forbidden"


async def test_resources_and_prompts_are_those_of_their_toolset(house: House) -> None:
    house.engine.add("collection:memory", text="a note")
    kb, ragler = house.key("kb", toolsets=("kb",)), house.key("ragler", toolsets=("ragler",))
    writer = house.key("writer", "write")
    assert len((await house.ask(kb, "resources/list"))["result"]["resources"]) == 1
    assert (await house.ask(kb, "prompts/list"))["result"]["prompts"]
    for token in (ragler, writer):
        found = await house.ask(token, "resources/list")
        assert found["error"]["data"]["error_type"] == "forbidden"
        found = await house.ask(token, "resources/read", {"uri": "kb://documents/1"})
        assert found["error"]["data"]["error_type"] == "forbidden"
    assert (await house.ask(ragler, "prompts/list"))["result"]["prompts"] == []
    name = (await house.ask(kb, "prompts/list"))["result"]["prompts"][0]["name"]
    found = await house.ask(ragler, "prompts/get", {"name": name})
    assert found["error"]["data"]["error_type"] == "forbidden"


async def test_cancelling_a_task_needs_the_right_to_write(house: House) -> None:
    task = {"taskId": "00000000-0000-0000-0000-000000000000"}
    found = await house.ask(house.key("reader"), "tools/cancel", task)
    assert found["error"]["data"]["error_type"] == "forbidden"
    found = await house.ask(house.key("writer", "write"), "tools/cancel", task)
    assert found["error"]["data"]["error_type"] == "task_not_found"


async def test_a_call_that_becomes_a_task_needs_no_more_than_the_call(house: House) -> None:
    """Its job is queued: an error here would make the client send the call again."""
    robot = house.key("robot", "write")
    last = house.key("last", "read write", quotas=Quotas(calls_per_minute=1))
    for token in (robot, last):
        params = {"name": "kb_addnote", "arguments": {"text": token}, "task": {}}
        found = await house.ask(token, "tools/call", params, era=LATEST_HANDSHAKE)
        task_id = found["result"]["task"]["taskId"]
        assert house.engine.state.job(task_id).id == task_id


async def test_a_rotated_key_ends_at_once_or_after_its_grace(house: House) -> None:
    old = house.key()
    _, new = house.keys.rotate("ci", timedelta(minutes=5))
    assert await house.tools(old) == await house.tools(new)
    _, newest = house.keys.rotate("ci")
    assert await house.tools(newest)
    for token in (old, new):
        response = await house.served.http.post(
            "/mcp", json=request("ping"), headers={"Authorization": f"Bearer {token}"}
        )
        assert response.status_code == 401


async def test_a_websocket_ends_when_its_key_does(house: House) -> None:
    token = house.key()
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as http,
        http.ws_connect(house.served.mcp.replace("http", "ws")) as socket,
    ):
        message = json.dumps(call("kb_addnote", 1, text="x"))
        await socket.send_str(message)
        assert "may not write" in (await socket.receive()).data
        file = house.keys.path
        await asyncio.to_thread(file.write_text, file.read_text().replace('"read"', '"read", "write"'))
        await socket.send_str(message.replace('"id": 1', '"id": 2'))
        assert "may not write" not in (await socket.receive()).data, "what it may now counts"
        house.keys.revoke("ci")
        await socket.send_str(message.replace('"id": 1', '"id": 3'))
        assert (await socket.receive()).data == 1008


async def test_an_upload_is_of_the_key_that_began_it(house: House) -> None:
    mine, other = house.key("mine", "read write"), house.key("other", "read write")
    started = await house.call(mine, "kb_upload_start", filename="a.txt", total_size=3)
    upload = started["upload_id"]
    calls: dict[str, dict[str, Any]] = {
        "kb_upload_chunk": {"chunk_index": 0, "data": base64.b64encode(b"abc").decode()},
        "kb_upload_finish": {},
        "kb_upload_abort": {},
    }
    for tool, arguments in calls.items():
        refused = (await house.call(other, tool, upload_id=upload, **arguments))["refused"]
        assert refused["error"] == "upload_not_found"
        unknown = (await house.call(other, tool, upload_id="0" * 8, **arguments))["refused"]
        assert unknown["message"] == refused["message"].replace(upload, "0" * 8), "in the same words"
    response = await house.served.http.put(started["upload_url"], content=b"abc")
    assert response.status_code == 201
    assert "refused" not in await house.call(mine, "kb_upload_finish", upload_id=upload)


async def test_a_key_with_a_reach_adds_nothing_to_a_collection_outside_and_learns_which_are_inside(
    house: House,
) -> None:
    """Without a `collection` the note or file would go into `documents`, outside the access scope."""
    token = house.key("team", "read write", collections=("memory", "team-*"))
    file, note = {"filename": "a.txt", "total_size": 3}, {"text": "words"}
    for tool, arguments in (("kb_upload_start", file), ("kb_addnote", note)):
        refused = (await house.call(token, tool, **arguments))["refused"]
        assert (refused["error"], refused["parameter"]) == ("forbidden", "collection")
        assert (
            "Pass one of its collections as `collection`: 'memory', 'team-' and more." in refused["message"]
        )
        assert "refused" not in await house.call(token, tool, **arguments, collection="team-a")


async def test_a_key_that_may_not_add_files_learns_of_none(opened: Open, tmp_path: Path) -> None:
    house = await opened(file_roots=[str(tmp_path)])
    token = house.key("team", "read write", collections=("memory",))
    there = tmp_path / "there.html"
    there.write_text("<p>words</p>")
    refused = [
        (await house.call(token, "knowledge-add", file_path=str(path)))["refused"]
        for path in (there, tmp_path / "absent.html", tmp_path.parent / "outside.html")
    ]
    assert refused[0]["error"] == "forbidden"
    assert refused[1:] == refused[:1] * 2
    assert house.engine.journal.requests("createJob") == []


# --- quotas --------------------------------------------------------------------------------------


async def test_calls_a_minute_are_bounded_for_each_key(house: House) -> None:
    token = house.key(quotas=Quotas(calls_per_minute=3))
    answers = [await house.call(token, "kb_status") for _ in range(5)]
    refused = [answer["refused"] for answer in answers if "refused" in answer]
    assert len(refused) in (0, 1, 2)  # a minute may end between two calls
    assert all(each["error"] == "rate_limited" and 1 <= each["retry_after"] <= 60 for each in refused)
    assert "refused" not in await house.call(house.key("other"), "kb_status")


async def test_quotas_of_a_key_bound_the_documents_and_bytes_of_a_day(house: House) -> None:
    token = house.key("ci", "read write", quotas=Quotas(documents_per_day=2, bytes_per_day=100))
    assert "refused" not in await house.call(token, "kb_addnote", text="x" * 60)
    refused = (await house.call(token, "kb_addnote", text="y" * 41))["refused"]
    assert (refused["error"], refused["left"]) == ("quota_exceeded", 40)
    refused = (await house.call(token, "kb_upload_start", filename="a.txt", total_size=41))["refused"]
    assert refused["error"] == "quota_exceeded"
    started = await house.call(token, "kb_upload_start", filename="a.txt", total_size=3)
    await house.served.http.put(started["upload_url"], content=b"abc")
    assert "refused" not in await house.call(token, "kb_upload_finish", upload_id=started["upload_id"])
    refused = (await house.call(token, "kb_addnote", text="z"))["refused"]
    assert "documents" in refused["message"]
    assert len(house.engine.journal.requests("createJob")) == 2


async def test_uploads_in_flight_are_bounded_for_each_key(house: House) -> None:
    token = house.key("ci", "write", quotas=Quotas(uploads_in_flight=2))
    other = house.key("other", "write")
    upload: dict[str, Any] = {"filename": "a.txt", "total_size": 3}
    for _ in range(2):
        assert "refused" not in await house.call(token, "kb_upload_start", **upload)
    assert (await house.call(token, "kb_upload_start", **upload))["refused"]["error"] == "too_many_uploads"
    assert "refused" not in await house.call(other, "kb_upload_start", **upload)


# --- pages and metrics ---------------------------------------------------------------------------


async def login(house: House, token: str, status: int = 303) -> httpx.Response:
    house.served.http.cookies.clear()
    response = await house.served.http.post("/login", files={"key": (None, token), "to": (None, "/")})
    assert response.status_code == status
    return response


async def page(house: House, path: str, status: int = 200) -> str:
    response = await house.served.http.get(path, headers={"Accept": "text/html"})
    assert response.status_code == status, response.text
    return response.text


async def test_pages_are_for_every_key_as_far_as_it_goes(house: House) -> None:
    reader, writer = house.key("reader"), house.key("writer", "read write")
    document = house.engine.add("collection:memory", text="a note").id
    await page(house, "/documents", 303)
    await login(house, "guess", 403)
    await login(house, reader)
    await page(house, "/add", 403)
    form = re.search(r'name="token" value="([0-9a-f]{64})"', await page(house, "/documents"))
    assert form is not None
    fields = {"token": (None, form[1]), "text": (None, "words")}
    response = await house.served.http.post("/add", files=fields)
    assert (response.status_code, "may not write" in response.text) == (403, True)
    response = await house.served.http.post(f"/documents/{document}/remove", files=fields)
    assert (response.status_code, "may not delete" in response.text) == (403, True)
    assert house.engine.journal.changes() == []
    house.keys.revoke("reader")
    await page(house, "/documents", 303)
    await login(house, writer)
    form = re.search(r'name="token" value="([0-9a-f]{64})"', await page(house, "/add"))
    assert form is not None
    response = await house.served.http.post("/add", files=fields | {"token": (None, form[1])})
    assert response.status_code == 303


@pytest.mark.parametrize(("rights", "is_named"), [("read", False), ("read administer", True)])
async def test_the_storage_is_named_to_administrators_and_not_called_empty_to_others(
    house: House, rights: str, is_named: bool
) -> None:
    key = house.key(rights=rights)
    assert ("storage" in await house.call(key, "kb_status")) == is_named
    base = (await house.call(key, "knowledge-status"))["knowledge_base"]
    assert all((base[name] is not None) == is_named for name in ("total_size_bytes", "storage_path"))
    await login(house, key)
    assert ("Data folder" in await page(house, "/state")) == is_named


async def test_metrics_with_collection_names_need_an_unrestricted_key(house: House) -> None:
    everything, team = house.key("all"), house.key("team", collections=("team-*",))
    await house.call(everything, "kb_search", query="granite")
    remote = {"Via": "1.1 proxy"}

    async def metrics(token: str) -> httpx.Response:
        return await house.served.http.get("/metrics", headers={**remote, "Authorization": f"Bearer {token}"})

    assert "mcp_search_results_count" in (await metrics(everything)).text
    narrowed = (await metrics(team)).text
    assert "mcp_requests_total" in narrowed
    assert "mcp_search_results_count" not in narrowed
    assert (await metrics("guess")).status_code == 401
    counted = 'kb_refused_requests_total{error_type="unauthorized"}'
    assert counted in (await metrics(everything)).text


# --- refusals ------------------------------------------------------------------------------------


async def test_wrong_keys_are_slowed_logged_with_their_address_and_counted(
    opened: Open, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr("mcp_aiohttp.guard.WrongTokens", partial(WrongTokens, clock=lambda: 0.0))
    house = await opened(trusted_proxies=["127.0.0.1"])
    token = house.key()
    client = {"X-Forwarded-For": "203.0.113.9", "Content-Type": "application/json"}

    async def status(key: str) -> int:
        headers = {**client, "Authorization": f"Bearer {key}"}
        return (await house.served.http.post("/mcp", json=request("ping"), headers=headers)).status_code

    assert [await status(f"guess{number}") for number in range(12)] == [401] * 11 + [429]
    assert await status(token) == 429
    response = await house.served.http.post(
        "/login", files={"key": (None, token)}, headers={"X-Forwarded-For": "203.0.113.9"}
    )
    assert response.status_code == 429, "at the other door, too"
    refusals = [record for record in caplog.records if record.message == "Refused a request"]
    assert {getattr(record, "address", None) for record in refusals} == {"203.0.113.9"}
    assert {getattr(record, "error", None) for record in refusals} == {
        "unauthorized",
        "too_many_wrong_tokens",
    }
    headers = {"Authorization": f"Bearer {token}", "X-Forwarded-For": "203.0.113.8"}
    text = (await house.served.http.get("/metrics", headers=headers)).text
    assert 'kb_refused_requests_total{error_type="too_many_wrong_tokens"} 3' in text


async def test_no_token_is_logged(house: House, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    token = house.key("ci", "read write")
    await house.call(token, "kb_search", query=f"where is {token}")
    await house.call(token, "kb_get", source_path=token)
    house.keys.revoke("ci")
    await house.served.http.post("/mcp", json=request("ping"), headers={"Authorization": f"Bearer {token}"})
    formatter = JsonFormatter()
    written = [formatter.format(record) for record in caplog.records]
    assert written
    assert not [line for line in written if token.split("_", 2)[2] in line]
    assert token not in sanitised(f"find {token} please")
    oauth = Issuer("https://issuer", "kb").token()
    assert oauth not in formatter.info_line("x", f"got {oauth}.", {})


# --- OAuth ---------------------------------------------------------------------------------------


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    issuer = Issuer()
    async with TestServer(issuer.app()) as server:
        issuer.url = str(server.make_url("")).rstrip("/")
        yield issuer


@pytest.fixture
async def protected(opened: Open, issuer: Issuer) -> House:
    house = await opened(issuer)
    issuer.audience = house.served.mcp
    return house


async def test_where_tokens_come_from_is_published(protected: House, issuer: Issuer) -> None:
    base = protected.served.base
    for path in ("", "/mcp", "/mcp/", "/mcp/kb", "/mcp/kb/"):
        response = await protected.served.http.get(
            f"/.well-known/oauth-protected-resource{path}", headers={"Origin": "https://inspector.example"}
        )
        assert response.json() == {
            "resource": base + path,
            "authorization_servers": [issuer.url],
            "bearer_methods_supported": ["header"],
            "scopes_supported": ["kb:read", "kb:write", "kb:delete", "kb:admin"],
            "resource_name": "kb",
        }
        assert response.headers["Access-Control-Allow-Origin"] == "*"
    for path in (
        "/register",
        "/.well-known/oauth-authorization-server",
        "/.well-known/oauth-protected-resource/x",
    ):
        response = await protected.served.http.get(path)
        assert response.status_code == 404
        assert issuer.url in response.json()["error_description"]


async def test_without_an_issuer_nothing_is_published(house: House) -> None:
    house.key()
    for path in ("", "/mcp"):
        response = await house.served.http.get(f"/.well-known/oauth-protected-resource{path}")
        assert response.status_code == 404
        assert "This server has no OAuth." in response.json()["error_description"]


async def test_a_caller_without_a_token_learns_where_to_get_one(protected: House) -> None:
    response = await protected.served.post(request("ping"), path="/mcp/kb")
    base = protected.served.base
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"] == (
        'Bearer scope="kb:read kb:write", '
        f'resource_metadata="{base}/.well-known/oauth-protected-resource/mcp/kb"'
    )


async def test_a_token_may_use_the_tools_of_its_scopes(protected: House, issuer: Issuer) -> None:
    writer = issuer.token(scope="kb:read kb:write")
    assert "refused" not in await protected.call(writer, "kb_addnote", text="words")
    for audience in (protected.served.base, f"{protected.served.base}/", f"{protected.served.mcp}/kb/"):
        assert await protected.tools(issuer.token(aud=audience))


@pytest.mark.parametrize("meta", [None, {"progressToken": "p"}], ids=["fast path", "kernel"])
async def test_a_call_that_needs_another_scope_names_all_scopes_of_the_next_token(
    protected: House, issuer: Issuer, meta: dict[str, Any] | None
) -> None:
    """The client can sign in again; existing scopes are listed because some clients replace theirs."""
    token = issuer.token(scope="openid kb:read")
    assert "kb_addnote" in await protected.tools(token), "a tool that another sign-in allows is listed"
    headers = {"Authorization": f"Bearer {token}", "MCP-Protocol-Version": LATEST_HANDSHAKE}
    message = call("kb_addnote", meta=meta, text="words")
    response = await protected.served.http.post("/mcp", json=message, headers=headers)
    assert response.status_code == 403
    assert response.json()["error"]["data"]["error_type"] == "insufficient_scope"
    challenge = response.headers["WWW-Authenticate"]
    assert 'error="insufficient_scope"' in challenge
    assert 'scope="openid kb:read kb:write"' in challenge
    assert 'oauth-protected-resource/mcp"' in challenge


async def test_a_scope_that_no_issuer_gives_is_not_requested(opened: Open, issuer: Issuer) -> None:
    """Without a scope for writing the call is refused as with a key, and the tool is not listed."""
    house = await opened(issuer, oauth_scopes=["read=kb:read"])
    issuer.audience = house.served.mcp
    assert "kb_addnote" not in await house.tools(issuer.token())
    assert (await house.call(issuer.token(), "kb_addnote", text="x"))["refused"]["error"] == "forbidden"


@pytest.mark.parametrize("what", ["expired", "garbage", "good, without a scope of kb"])
async def test_a_bad_token_is_refused(protected: House, issuer: Issuer, what: str) -> None:
    [bad] = [each for each in BAD if each.what == what]
    headers = {"Authorization": f"Bearer {bad.make(issuer)}", "Content-Type": "application/json"}
    response = await protected.served.http.post("/mcp", json=request("ping"), headers=headers)
    assert response.status_code == bad.status
    assert response.json()["error"]["message"] == bad.words
    challenge = response.headers["WWW-Authenticate"]
    assert f'error="{bad.error}"' in challenge
    assert f'error_description="{bad.words}"' in challenge
    assert 'scope="kb:read kb:write"' in challenge
    assert "resource_metadata=" in challenge


async def test_while_the_issuer_is_out_of_reach_a_client_keeps_its_token(
    protected: House, issuer: Issuer
) -> None:
    issuer.fails = True
    headers = {"Authorization": f"Bearer {issuer.token()}", "Content-Type": "application/json"}
    response = await protected.served.http.post("/mcp", json=request("ping"), headers=headers)
    assert (response.status_code, response.headers["Retry-After"]) == (503, "10")
    assert await protected.tools(protected.key()) > READERS, "keys go on"


async def test_a_token_of_sixteen_kilobytes_is_read(protected: House, issuer: Issuer) -> None:
    groups = ["0123456789abcdef" * 2] * 330
    token = issuer.token(groups=groups)
    assert 15_000 < len(token) < 16 * 1024
    assert await protected.tools(token)


async def test_a_token_of_bytes_beyond_ascii_is_a_wrong_one(protected: House) -> None:
    headers = {b"Authorization": b"Bearer \xe4.b.c", b"Content-Type": b"application/json"}
    response = await protected.served.http.post("/mcp", json=request("ping"), headers=headers)
    assert response.status_code == 401


@pytest.mark.parametrize("path", ["/mcp/", "/mcp/kb/", "/mcp/ragler/"])
async def test_an_endpoint_answers_with_a_slash_at_its_end(house: House, path: str) -> None:
    for era in (MODERN, LATEST_HANDSHAKE):
        answer = await house.ask("", "tools/list", era=era, path=path)
        assert answer["result"] == (await house.ask("", "tools/list", era=era, path=path[:-1]))["result"]


async def test_an_audience_of_the_settings_is_the_only_one(opened: Open, issuer: Issuer) -> None:
    house = await opened(issuer, oauth_audience=["api://kb"])
    assert await house.tools(issuer.token(aud="api://kb"))
    assert await house.tools(issuer.token(aud="api://kb/"))
    headers = {
        "Authorization": f"Bearer {issuer.token(aud=house.served.mcp)}",
        "Content-Type": "application/json",
    }
    response = await house.served.http.post("/mcp", json=request("ping"), headers=headers)
    assert response.status_code == 401
