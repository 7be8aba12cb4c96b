"""Promises on RAGler's collections: lists, descriptions, roles and rate limits."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from kb_contracts.api import operations as ops
from kb_contracts.api import ragler as r
from kb_verify.client import Client, decode, fresh_key, fresh_user, problem

pytestmark = pytest.mark.usefixtures("ragler")

GUIDES = r.collection_id("guides")
SERVICE = {r.USER_ROLE: r.SERVICE}


@pytest.mark.requirement("R75", "R16", "R17", "R18")
def test_every_collection_is_listed_by_name(kb: Client) -> None:
    """Collections in use and described ones, each once, with chunks, creator and time of creation."""
    assert kb.collections() == {}
    first = kb.stored_note("granite", tags=["collection:stones", "x"])
    kb.note("basalt", tags=["collection:stones"])
    kb.note("otter", tags=["collection:Animals & co"])
    kb.note("nowhere", tags=["collection:", "collections"])
    kb.saved_collection(str(uuid4()), "guides", description="How it is done", created_by="ann@example.com")
    listed = kb.collections()
    assert list(listed) == ["Animals & co", "guides", "stones"]
    assert kb.call(ops.LIST_COLLECTIONS).total == 3
    stones, guides = listed["stones"], listed["guides"]
    assert (stones.chunk_count, stones.description, stones.created_by) == (2, "", r.ENGINE_USER)
    assert (stones.id, stones.created_at) == (r.collection_id("stones"), first.created_at)
    assert (guides.chunk_count, guides.description) == (0, "How it is done")
    assert guides.created_by == "ann@example.com"


@pytest.mark.requirement("R20", "R21", "R23")
def test_a_collection_is_read_with_its_statistics(kb: Client) -> None:
    note = kb.note("granite quarry", tags=["collection:guides"])
    kb.file("a.md", b"# Basalt\n\ncolumns by the sea", tags='["collection:guides"]')
    changed = kb.patched(note, text="granite quarry by the road").updated_at
    found = kb.call(ops.GET_COLLECTION, GUIDES)
    listed = kb.collections()["guides"]
    assert (found.id, found.name, found.chunk_count) == (listed.id, "guides", 2)
    assert (found.created_at, found.created_by) == (listed.created_at, listed.created_by)
    figures = found.statistics
    assert figures.total_tokens >= 2
    assert figures.avg_chunk_size == pytest.approx(figures.total_tokens / 2, abs=1e-3)
    assert figures.last_published == found.updated_at == changed


def test_more_text_is_more_tokens(kb: Client) -> None:
    kb.note("granite", tags=["collection:guides"])
    before = kb.call(ops.GET_COLLECTION, GUIDES).statistics.total_tokens
    kb.note("granite " * 50, tags=["collection:stones"])
    assert kb.call(ops.GET_COLLECTION, GUIDES).statistics.total_tokens == before
    kb.note("granite quarry " * 20, tags=["collection:guides"])
    assert kb.call(ops.GET_COLLECTION, GUIDES).statistics.total_tokens >= before + 20


@pytest.mark.parametrize("id_", ["00000000-0000-4000-8000-000000000000", r.collection_id("stones")])
def test_an_unknown_collection_is_not_found(kb: Client, id_: str) -> None:
    """Also under the default id of a name that is not in use."""
    kb.note("granite", tags=["collection:guides", "stones"])
    kb.refused("collection_not_found", ops.GET_COLLECTION, id_)


@pytest.mark.parametrize("id_", ["guides", "1", GUIDES.upper()])
def test_what_is_no_id_is_refused_by_name(kb: Client, id_: str) -> None:
    """Only a UUID in lower case is an id."""
    kb.refused("invalid_parameter", ops.GET_COLLECTION, id_, parameter="collection_id")


def test_a_collection_follows_its_documents(kb: Client) -> None:
    """It appears with the first document and disappears with the last, by any operation."""
    one, two = kb.note("granite", tags=["collection:guides"]), kb.note("basalt")
    assert kb.collections()["guides"].chunk_count == 1
    kb.request(ops.ADD_TAGS, two, json={"tags": ["collection:guides"]})
    assert kb.collections()["guides"].chunk_count == 2
    kb.request(ops.DELETE_DOCUMENT, one)
    assert kb.collections()["guides"].chunk_count == 1
    kb.request(ops.REMOVE_TAG, two, "collection:guides")
    assert kb.collections() == {}
    kb.refused("collection_not_found", ops.GET_COLLECTION, GUIDES)


@pytest.mark.requirement("R21", "R22")
def test_a_described_collection_tells_what_was_said(kb: Client) -> None:
    """Its documents, id and time of creation remain, and its time of change is updated."""
    kb.note("granite", tags=["collection:guides"])
    before = kb.call(ops.GET_COLLECTION, GUIDES)
    after = kb.saved_collection(
        GUIDES,
        "guides",
        description="How it is done",
        created_by="ann@example.com",
        target_audience=["developers", "operators"],
        usage_scenarios=["first day"],
    )
    assert (after.description, after.created_by) == ("How it is done", "ann@example.com")
    assert (after.target_audience, after.usage_scenarios) == (["developers", "operators"], ["first day"])
    assert (after.id, after.chunk_count, after.created_at) == (GUIDES, 1, before.created_at)
    assert after.updated_at > before.updated_at
    assert after.statistics == before.statistics
    assert kb.call(ops.GET_COLLECTION, GUIDES) == after


@pytest.mark.requirement("R22")
def test_what_nobody_has_said_is_absent(kb: Client) -> None:
    """The members are neither null nor an empty list; a list that was sent empty is returned."""
    kb.saved_collection(GUIDES, "guides")
    body = kb.request(ops.GET_COLLECTION, GUIDES).json()
    assert not {"target_audience", "usage_scenarios"} & body.keys()
    kb.saved_collection(GUIDES, "guides", target_audience=[])
    assert kb.call(ops.GET_COLLECTION, GUIDES).target_audience == []


def test_what_is_left_out_is_said_no_more(kb: Client) -> None:
    """Except the creator, which keeps its value."""
    kb.saved_collection(
        GUIDES, "guides", description="a", created_by="ann@example.com", usage_scenarios=["b"]
    )
    kb.saved_collection(GUIDES, "guides")
    body = kb.request(ops.GET_COLLECTION, GUIDES).json()
    assert (body["description"], body["created_by"]) == ("", "ann@example.com")
    assert "usage_scenarios" not in body


def test_saying_the_same_again_changes_nothing(kb: Client) -> None:
    fields = {"description": "a", "target_audience": ["b"]}
    first = kb.saved_collection(GUIDES, "guides", **fields)
    assert kb.saved_collection(GUIDES, "guides", **fields) == first
    assert kb.saved_collection(GUIDES, "guides", **fields, created_by=first.created_by) == first
    assert kb.saved_collection(GUIDES, "guides", description="c").updated_at > first.updated_at


def test_a_described_collection_stands_without_documents(kb: Client) -> None:
    """It is empty before the first document, after the last and after clearing, until it is cleared too."""
    id_ = str(uuid4())
    empty = kb.saved_collection(id_, "guides", description="a")
    assert (empty.chunk_count, empty.statistics.total_tokens, empty.statistics.avg_chunk_size) == (0, 0, 0)
    assert empty.statistics.last_published == empty.updated_at == empty.created_at
    document = kb.note("granite", tags=["collection:guides"])
    assert kb.call(ops.GET_COLLECTION, id_).chunk_count == 1
    kb.request(ops.DELETE_DOCUMENT, document)
    assert kb.call(ops.GET_COLLECTION, id_) == empty
    kb.note("basalt", tags=["collection:guides", "collection:stones"])
    kb.clear()
    assert (kb.call(ops.GET_COLLECTION, id_), list(kb.collections())) == (empty, ["guides"])
    kb.clear(collections=True)
    assert kb.collections() == {}


def test_a_collection_can_be_described_under_any_id_that_is_free(kb: Client) -> None:
    """Later documents belong to it, and no other id leads to it."""
    id_ = str(uuid4())
    kb.saved_collection(id_, "guides")
    kb.note("granite", tags=["collection:guides"])
    assert [(each.id, each.chunk_count) for each in kb.collections().values()] == [(id_, 1)]
    kb.refused("collection_not_found", ops.GET_COLLECTION, GUIDES)


def test_a_name_has_one_id_and_an_id_one_name(kb: Client) -> None:
    """The pairing never changes, and the error names the valid one."""
    id_ = str(uuid4())
    kb.saved_collection(id_, "guides", description="a")
    kb.note("granite", tags=["collection:stones"])
    for other, name, named in (
        (id_, "handbook", "guides"),
        (str(uuid4()), "guides", id_),
        (GUIDES, "guides", id_),
        (str(uuid4()), "stones", r.collection_id("stones")),
        (id_, "stones", "guides"),
        (r.collection_id("later"), "handbook", r.collection_id("handbook")),
    ):
        assert named in problem(kb.put_collection(other, name), "collection_exists").detail
    assert sorted(kb.collections()) == ["guides", "stones"]
    assert kb.call(ops.GET_COLLECTION, id_).description == "a"


def test_a_name_that_people_read_is_a_name(kb: Client) -> None:
    """Any text that a tag can carry after `collection:`."""
    for name in ("API Documentation", "größe & co", "日本語", "x" * 189):
        assert kb.saved_collection(r.collection_id(name), name).name == name
        document = kb.note("granite", tags=[f"collection:{name}"])
        assert kb.call(ops.GET_COLLECTION, r.collection_id(name)).chunk_count == 1
        kb.request(ops.DELETE_DOCUMENT, document)


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({"name": ""}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": "x" * 190}, "name"),
        ({"description": "x" * 4_001}, "description"),
        ({"created_by": "ann"}, "created_by"),
        ({"target_audience": [""]}, "target_audience[0]"),
        ({"usage_scenarios": ["a"] * 51}, "usage_scenarios"),
    ],
)
def test_a_description_that_does_not_fit_is_refused_by_name(
    kb: Client, body: dict[str, Any], parameter: str
) -> None:
    response = kb.request(ops.PUT_COLLECTION, GUIDES, json={"name": "guides", **body})
    assert problem(response, "invalid_parameter").parameter == parameter
    assert kb.collections() == {}


def test_a_retried_description_answers_as_it_did(kb: Client) -> None:
    """A description in between is not overwritten; a different request under the key is a mismatch."""
    key = fresh_key()
    first = decode(kb.put_collection(GUIDES, "guides", key, description="a"), r.CollectionDetail)
    later = kb.saved_collection(GUIDES, "guides", description="b")
    assert decode(kb.put_collection(GUIDES, "guides", key, description="a"), r.CollectionDetail) == first
    assert kb.call(ops.GET_COLLECTION, GUIDES) == later
    problem(kb.put_collection(GUIDES, "guides", key, description="c"), "idempotency_mismatch")


# --- roles and limits -----------------------------------------------------------------------------


@pytest.mark.requirement("R45", "R48")
def test_the_role_service_may_search_list_and_get(kb: Client) -> None:
    kb.note("granite", tags=["collection:guides"])
    found = kb.request(ops.VECTOR_SEARCH, json={"query": "granite"}, headers=SERVICE)
    assert len(decode(found, r.VectorSearchResponse).results) == 1
    listed = kb.call(ops.LIST_COLLECTIONS, headers=SERVICE)
    got = kb.call(ops.GET_COLLECTION, GUIDES, headers=SERVICE)
    assert [each.id for each in listed.collections] == [got.id] == [GUIDES]


@pytest.mark.requirement("R49")
@pytest.mark.parametrize("role", ["service", "Service", "SERVICE", "editor, service"])
def test_the_role_service_may_not_create_or_change(kb: Client, role: str) -> None:
    """In any spelling, and in combination with other roles; other roles may."""
    headers = {r.USER_ROLE: role}
    problem(kb.put_collection(GUIDES, "guides", headers), "forbidden")
    assert kb.collections() == {}
    kb.saved_collection(GUIDES, "guides", description="a")
    problem(kb.put_collection(GUIDES, "guides", headers, description="b"), "forbidden")
    assert kb.call(ops.GET_COLLECTION, GUIDES).description == "a"
    decode(kb.put_collection(GUIDES, "guides", {r.USER_ROLE: "editor"}, description="b"), r.CollectionDetail)


def limited(kb: Client, operation_id: str, headers: dict[str, str]) -> Any:
    """Return the response to a valid request."""
    body = {"json": {"query": "granite"}} if operation_id == "vectorSearch" else {}
    path = [GUIDES] if operation_id == "getCollection" else []
    return kb.request(ops.BY_ID[operation_id], *path, headers=headers, **body)


@pytest.mark.requirement("R50", "R51", "R52", "R53")
@pytest.mark.parametrize(("operation_id", "limit"), r.LIMITS.items())
def test_a_user_may_ask_so_often_a_minute(kb: Client, operation_id: str, limit: int) -> None:
    """The next call is refused with the seconds to wait; another user and other operations are unaffected."""
    kb.note("granite", tags=["collection:guides"])
    user = fresh_user()
    send = partial(limited, kb, operation_id)
    assert {send(user).status_code for _ in range(limit)} == {200}
    for _ in range(2):
        response = send(user)
        seconds = problem(response, "rate_limited").retry_after
        assert seconds is not None
        assert 0 < seconds <= int(response.headers["Retry-After"]) <= r.WINDOW_SECONDS
    assert send(fresh_user()).status_code == 200
    for other in r.LIMITS.keys() - {operation_id}:
        assert limited(kb, other, user).status_code == 200
    decode(kb.put_collection(GUIDES, "guides", user), r.CollectionDetail)


@pytest.mark.requirement("R53")
def test_without_a_user_the_credential_counts(kb: Client) -> None:
    """All callers without a user share one limit; a named user is not counted in it."""
    responses = [kb.http.get("/collections") for _ in range(r.LIMITS["listCollections"] + 1)]
    problem(responses[-1], "rate_limited")
    assert kb.collections() == {}


def test_a_refused_call_is_not_counted(kb: Client) -> None:
    user = fresh_user()
    for _ in range(r.LIMITS["listCollections"]):
        kb.refused("unknown_parameter", ops.LIST_COLLECTIONS, headers=user, params={"colour": "red"})
    kb.call(ops.LIST_COLLECTIONS, headers=user)


@pytest.mark.parametrize(
    ("name", "value"), [(r.USER_ID, "x" * 256), (r.USER_ROLE, "x" * 65), (r.USER_ID, "é"), (r.USER_ROLE, "é")]
)
def test_a_user_or_role_that_is_none_is_refused(kb: Client, name: str, value: str) -> None:
    response = kb.http.get("/collections", headers=[(name.encode(), value.encode())])
    assert problem(response, "invalid_parameter").parameter == name


@pytest.mark.parametrize("name", [r.USER_ID, r.USER_ROLE])
def test_two_users_or_roles_are_none(kb: Client, name: str) -> None:
    response = kb.http.get("/collections", headers=[(name, "service"), (name, "editor")])
    assert problem(response, "invalid_parameter").parameter == name
