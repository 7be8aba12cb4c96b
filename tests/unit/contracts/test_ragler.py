"""Names and ids of collections, and how long a refusal says to wait."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.api.operations import BY_ID, OPERATIONS, ApiSurface, Method, of_surface
from kb_contracts.api.ragler import LIMITS, PREFIX, CollectionName, collection_id, may_have_id, names_in
from kb_contracts.http.mount import problem_response


def test_an_id_is_derived_from_the_name_alone() -> None:
    """The same on every engine, for ever: clients may keep it."""
    assert collection_id("documents") == "abb825c1-876b-5092-8385-2428449cf392"
    assert UUID(collection_id("größe & co")).version == 5
    assert collection_id("a") != collection_id("A")


def test_only_its_own_derived_id_belongs_to_a_name() -> None:
    """Any other version is free."""
    assert may_have_id("a", collection_id("a"))
    assert not may_have_id("a", collection_id("b"))
    assert may_have_id("a", "00000000-0000-4000-8000-000000000000")


def test_names_are_what_follows_the_prefix() -> None:
    """Of each tag that has one, in their order; a name may look like a tag of the kind."""
    tags = ["x", "collection:b", "collection:", "collections:c", "collection:collection:a"]
    assert names_in(tags) == ["b", "collection:a"]


@pytest.mark.parametrize("name", ["a", " a", "API Documentation", "..", "x" * 189, "a:b", "日本語"])
def test_a_name_is_whatever_makes_a_tag(name: str) -> None:
    assert msgspec.convert(name, CollectionName) == name
    assert msgspec.convert(PREFIX + name, m.Tag)


@pytest.mark.parametrize("name", ["", "a ", "a,b", "a/b", "a\n", "a\x00", "x" * 190])
def test_what_makes_no_tag_is_no_name(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(name, CollectionName)
    if name:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(PREFIX + name, m.Tag)


@pytest.mark.parametrize(("wait", "seconds"), [(0.001, "1"), (30.0, "30"), (30.4, "31"), (59.983, "60")])
def test_retry_after_is_never_too_early(wait: float, seconds: str) -> None:
    """Whole seconds, rounded up."""
    response = problem_response(EngineError("rate_limited", "Wait.", retry_after=wait))
    assert response.headers["Retry-After"] == seconds


def test_every_operation_is_in_one_document_and_says_whether_it_changes_anything() -> None:
    """A search is a POST that changes nothing; whatever else is no GET honours an idempotency key."""
    assert sorted(entry.id for part in ApiSurface for entry in of_surface(part)) == sorted(BY_ID)
    searches = {entry.id for entry in OPERATIONS if entry.reads}
    assert searches == {"search", "vectorSearch"}
    for entry in OPERATIONS:
        assert entry.mutates == (entry.method is not Method.GET and entry.id not in searches)
    assert LIMITS.keys() == {entry.id for entry in of_surface(ApiSurface.RAGLER) if not entry.mutates}
    assert BY_ID["putCollection"].mutates
