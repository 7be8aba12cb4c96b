"""Drafts: collections that are not in `KB_PUBLISHED_COLLECTIONS`, which the role `service` cannot read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from kb_contracts.access.reach import ACCESS, Access, Reach, access_header
from kb_contracts.api.ragler import SERVICE, USER_ROLE, collection_id
from kb_simulator import SimulatorSettings, in_thread
from tests.support.engines import API_KEY, client_of, engine
from tests.support.postgres import new_database

PUBLISHED = "guides, public-*"
DRAFT, GUIDE = "collection:drafts", "collection:guides"


@pytest.fixture(
    scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.process), "simulator"]
)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ExitStack() as stack:
        if request.param == "simulator":
            settings = SimulatorSettings(port=0, api_key=API_KEY, published_collections=PUBLISHED)
            yield stack.enter_context(in_thread(settings)).url
            return
        home = tmp_path_factory.mktemp("home")
        base: dict[str, Any] = (
            {"store": asyncio.run(new_database()).url} if request.param == "postgres" else {}
        )
        yield stack.enter_context(engine(home, published_collections=PUBLISHED, **base))


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with client_of(url) as client:
        yield client
        client.delete("/api/v1/documents", params={"confirm": "true", "collections": "true"})


@pytest.fixture
def draft(http: httpx.Client) -> dict[str, Any]:
    """A document in a draft; a published one and one in no collection exist as well."""
    found = [
        _note(http, text, *tags) for text, tags in (("granite", [DRAFT]), ("basalt", [GUIDE]), ("slate", []))
    ]
    return found[0]


def _note(http: httpx.Client, text: str, *tags: str) -> dict[str, Any]:
    sent = http.post("/api/v1/jobs", json={"text": text, "tags": tags}).raise_for_status().json()
    job = http.get(f"/api/v1/jobs/{sent['id']}", params={"wait": 30}).json()
    answer: dict[str, Any] = http.get(f"/api/v1/documents/{job['document_id']}").json()
    return answer


def _collections(http: httpx.Client, headers: dict[str, str]) -> list[str]:
    found = http.get("/collections", headers=headers).raise_for_status().json()["collections"]
    return [each["name"] for each in found]


@pytest.mark.requirement("R45", "R46")
@pytest.mark.parametrize("role", [SERVICE, "Service", "editor, SERVICE"])
def test_the_role_service_reads_what_is_published_and_no_drafts(
    http: httpx.Client, draft: dict[str, Any], role: str
) -> None:
    """On every route; without the role a caller reads both."""
    headers = {USER_ROLE: role}
    assert _collections(http, headers) == ["guides"]
    assert _collections(http, {}) == ["drafts", "guides"]
    for path in (f"/collections/{collection_id('drafts')}", f"/api/v1/documents/{draft['id']}"):
        assert http.get(path, headers=headers).status_code == 404
        assert http.get(path).status_code == 200
    for path in ("/vector/search", "/api/v1/search"):
        found = http.post(path, json={"query": "granite"}, headers=headers).raise_for_status().json()
        assert "granite" not in str(found["results"])
        assert "granite" in str(http.post(path, json={"query": "granite"}).json()["results"])
    assert http.get("/api/v1/documents", headers=headers).json()["total"] == 1
    assert [each["tag"] for each in http.get("/api/v1/tags", headers=headers).json()["tags"]] == [GUIDE]


@pytest.mark.requirement("R46", "R49")
def test_a_draft_is_published_by_a_move_that_the_role_service_may_not_make(
    http: httpx.Client, draft: dict[str, Any]
) -> None:
    path, service = f"/api/v1/documents/{draft['id']}/tags/{DRAFT}", {USER_ROLE: SERVICE}
    assert http.delete(path, params={"add": GUIDE}, headers=service).status_code == 403
    assert http.get(f"/api/v1/documents/{draft['id']}", headers=service).status_code == 404
    assert http.delete(path, params={"add": GUIDE}, headers={USER_ROLE: "editor"}).status_code == 200
    assert http.get(f"/api/v1/documents/{draft['id']}", headers=service).json()["tags"] == [GUIDE]


@pytest.mark.requirement("R46", "R47")
def test_a_role_publishes_documents_only_within_the_access_scope_of_the_key(http: httpx.Client) -> None:
    """The role restricts a key's access and does not extend it."""
    one, other = (_note(http, f"granite {name}", f"collection:public-{name}")["id"] for name in ("a", "b"))
    access = Access("a", reach=Reach(frozenset(["collection:public-a", DRAFT])))
    headers = {ACCESS: access_header(access), USER_ROLE: SERVICE}
    assert http.get(f"/api/v1/documents/{one}", headers=headers).status_code == 200
    assert http.get(f"/api/v1/documents/{other}", headers=headers).status_code == 404
