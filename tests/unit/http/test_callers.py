"""Callers: the rights of a token, the limits set by the two headers, and separate credentials."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from multidict import CIMultiDict

from kb_contracts.access.reach import ACCESS, EVERYTHING, RIGHTS, Access, Reach, access_header
from kb_contracts.api import models as m
from kb_contracts.api.operations import BY_ID, OPERATIONS
from kb_contracts.api.ragler import SERVICE, USER_ROLE
from kb_http.mount import build_application
from kb_http.requests import Incoming, access_by_token, credential_of, narrowed, right_missing
from tests.support.patience import ANSWER_SECONDS

NEWS = Access("news", frozenset(["read", "write"]), Reach(frozenset(["collection:news"])))
KEYS: Mapping[str, Access] = {"all": EVERYTHING, "news": NEWS}

Client = TestClient[web.Request, web.Application]


async def status_of(client: Client, head: str) -> int:
    """The status of a request whose head is sent as it is written, with an empty body."""
    end = "0\r\n\r\n" if "Transfer-Encoding" in head else ""
    reader, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(f"{head}Authorization: Bearer main\r\n\r\n{end}".encode())
    line = await asyncio.wait_for(reader.readline(), ANSWER_SECONDS)
    writer.close()
    return int(line.split()[1])


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://other.example/api/v1/status", "kb.example", 400),
        ("http://kb.example:80/api/v1/status", "kb.example", 400),
        ("http://KB.example/api/v1/status", "kb.example", 200),
        ("/api/v1/status", "kb.example", 200),
    ],
)
async def test_a_target_of_another_host_is_refused(
    client: Client, target: str, host: str, status: int
) -> None:
    assert await status_of(client, f"GET {target} HTTP/1.1\r\nHost: {host}\r\n") == status


@pytest.mark.parametrize(("coding", "status"), [("gzip, chunked", 400), ("chunked", 200), ("Chunked", 200)])
async def test_a_transfer_coding_but_chunked_is_refused(client: Client, coding: str, status: int) -> None:
    head = f"GET /api/v1/status HTTP/1.1\r\nHost: kb\r\nTransfer-Encoding: {coding}\r\n"
    assert await status_of(client, head) == status


async def test_a_body_that_is_not_in_its_coding_is_named_as_such(client: Client) -> None:
    headers = {
        "Authorization": "Bearer main",
        "Content-Type": "application/json",
        "Content-Encoding": "gzip",
        "Content-Length": "14",
    }
    response = await client.post("/api/v1/search", data=b'{"query": "a"}', headers=headers)
    problem = await response.json()
    assert (response.status, problem["code"]) == (400, "invalid_request")
    assert problem["detail"].startswith("The body is not gzip")


class Seen(m.Response):
    """The adapter's result for a caller."""

    access: Access
    credential: str


async def show(incoming: Incoming) -> msgspec.Struct:
    return Seen(access=incoming.access, credential=incoming.credential)


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    app = build_application({each.id: show for each in OPERATIONS}, api_key="main", access_of=KEYS.get)
    async with TestClient(TestServer(app)) as made:
        yield made


async def seen(client: Client, token: str, headers: dict[str, str] | None = None) -> Seen:
    sent = {"Authorization": f"Bearer {token}", **(headers or {})}
    async with client.get("/api/v1/documents", headers=sent) as response:
        assert response.status == 200, await response.text()
        return msgspec.json.decode(await response.read(), type=Seen)


async def refused(client: Client, method: str, path: str, headers: list[tuple[str, str]]) -> tuple[int, str]:
    async with client.request(method, path, headers=CIMultiDict(headers)) as response:
        return response.status, (await response.json(content_type=None))["code"]


def headers(access: Access, role: str | None = None) -> CIMultiDict[str]:
    return CIMultiDict([(ACCESS, access_header(access)), *([(USER_ROLE, role)] if role else [])])


@pytest.mark.requirement("R44")
async def test_a_request_has_the_access_of_its_token(client: Client) -> None:
    assert (await seen(client, "main")).access == EVERYTHING
    assert (await seen(client, "news")).access == NEWS
    for token in ("", "none", "Main"):
        found = await refused(client, "GET", "/api/v1/status", [("Authorization", f"Bearer {token}")])
        assert found == (401, "unauthorized")


async def test_the_header_only_takes_away(client: Client) -> None:
    wider = Access("x", reach=Reach(prefixes=frozenset(["collection:"])))
    found = await seen(client, "news", dict(headers(wider)))
    assert found.access == Access("x", NEWS.rights, NEWS.reach)
    other = Access("x", reach=Reach(frozenset(["collection:other"])))
    assert (await seen(client, "news", dict(headers(other)))).access.reach == Reach()


@pytest.mark.parametrize("value", ["", "x", "[]", '{"rights": ["own"]}', '{"reach": 1}', '{"other": 1}'])
async def test_a_header_that_does_not_fit_is_refused(client: Client, value: str) -> None:
    sent = [("Authorization", "Bearer main"), (ACCESS, value)]
    assert await refused(client, "GET", "/api/v1/status", sent) == (422, "invalid_parameter")


@pytest.mark.parametrize("second", ["{}", access_header(NEWS)])
async def test_a_header_that_comes_twice_is_refused(client: Client, second: str) -> None:
    sent = [("Authorization", "Bearer main"), (ACCESS, access_header(NEWS)), (ACCESS, second)]
    assert await refused(client, "GET", "/api/v1/status", sent) == (422, "invalid_parameter")
    joined = [("Authorization", "Bearer main"), (ACCESS, f"{access_header(NEWS)}, {second}")]
    assert await refused(client, "GET", "/api/v1/status", joined) == (422, "invalid_parameter")


async def test_a_right_that_is_missing_is_refused_on_every_route(client: Client) -> None:
    """Rights are checked before the body is read, so these requests have no body."""
    for operation in OPERATIONS:
        if operation.public:
            continue
        path = operation.path.replace("{document_id}", "1").replace("{version}", "1").replace("{tag}", "a")
        path = path.replace("{job_id}", "x").replace("{collection_id}", "x")
        without = Access(rights=RIGHTS - {operation.right})
        sent = [("Authorization", "Bearer main"), (ACCESS, access_header(without))]
        assert await refused(client, operation.method, path, sent) == (403, "forbidden"), operation.id
        role = [("Authorization", "Bearer main"), (USER_ROLE, "Editor, SERVICE")]
        if operation.right != "read":
            assert await refused(client, operation.method, path, role) == (403, "forbidden"), operation.id


def test_the_rights_that_operations_need() -> None:
    """Reading is a GET or a search; removing is a right of its own; clearing needs an administrator."""
    others = {each.id: each.right for each in OPERATIONS if each.right not in ("read", "write")}
    assert others == {
        "deleteDocument": "delete",
        "removeSource": "delete",
        "purgeVersions": "delete",
        "clearDocuments": "administer",
    }
    reading = {each.id for each in OPERATIONS if each.right == "read"}
    assert reading == {each.id for each in OPERATIONS if not each.mutates}


def test_the_role_service_reads() -> None:
    left = narrowed(NEWS, headers(EVERYTHING, SERVICE.upper()))
    assert (left.rights, left.reach) == ({"read"}, NEWS.reach)
    refusal = right_missing(BY_ID["addTags"], headers(EVERYTHING, SERVICE))
    assert (refusal.code, refusal.members) == ("forbidden", {"parameter": USER_ROLE})
    other = right_missing(BY_ID["addTags"], headers(EVERYTHING))
    assert (other.code, other.members) == ("forbidden", {})
    assert "write" in other.detail


def test_callers_with_different_access_have_different_credentials() -> None:
    token, other = "Bearer main", "Bearer news"
    reach = Reach(frozenset(["collection:news"]))
    each = [
        credential_of(token, EVERYTHING),
        credential_of(token, Access("a")),
        credential_of(token, Access("b")),
        credential_of(token, Access(reach=reach)),
        credential_of(token, Access("a", reach=reach)),
        credential_of(token, Access("a", reach=Reach())),
        credential_of(other, Access("a", reach=reach)),
    ]
    assert len(set(each)) == len(each)
    # A role changes the caller's rights, but not the access scope.
    assert credential_of(token, Access("a", frozenset(["read"]), reach)) == each[4]


def test_without_any_key_everybody_may_do_everything() -> None:
    assert access_by_token("", None)("") == access_by_token("", None)("x") == EVERYTHING
    assert access_by_token("main", None)("") is access_by_token("main", None)("x") is None
    assert access_by_token("", KEYS.get)("") is None
