"""Which id a collection may be described under, and where the fields of RAGler's results come from."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from msgspec import UNSET

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.api.ragler import ENGINE_USER, collection_id
from kb_contracts.semantics.collections import check_description, check_may_describe, check_same_collection
from kb_contracts.semantics.search import first_collections, source_types, vector_result

OWN, FREE = collection_id("guides"), "3f0c5d7e-9a53-4f1c-8e2b-0b8f3f2f9b11"


@pytest.mark.parametrize(
    ("id_", "described_as", "owner", "in_use", "allowed"),
    [
        (OWN, None, None, True, True),
        (FREE, None, None, False, True),
        (FREE, None, None, True, False),
        (FREE, None, "news", False, False),
        (collection_id("news"), None, None, False, False),
        (FREE, FREE, None, True, True),
        (OWN, FREE, None, True, False),
    ],
)
def test_a_name_has_one_id_and_an_id_one_name(
    id_: str, described_as: str | None, owner: str | None, in_use: bool, allowed: bool
) -> None:
    expectation: AbstractContextManager[object] = (
        nullcontext() if allowed else pytest.raises(EngineError, match="id")
    )
    with expectation:
        check_description(id_, "guides", described_as=described_as, owner=owner, in_use=in_use)


def test_the_role_service_describes_nothing() -> None:
    check_may_describe(None)
    with pytest.raises(EngineError) as refused:
        check_may_describe("editor, Service")
    assert refused.value.code == "forbidden"


def test_a_name_beside_an_id_is_the_same_collections() -> None:
    check_same_collection(None, "guides")
    check_same_collection("guides", "guides")
    with pytest.raises(EngineError, match="send one"):
        check_same_collection("news", "guides")


def result(metadata: dict[str, Any], *, tags: list[str], path: str | None = None) -> m.SearchResult:
    chunk = m.Chunk(id=1, uid="c", index=0, text="Bees.", page=None, heading=None, start=0, end=5)
    document = m.DocumentSummary(
        id=1,
        uid="u",
        title="t",
        doc_type="note",
        format=None,
        filename=None,
        source_path=path,
        metadata=metadata,
        version=1,
        created_at="2026-01-01",
        updated_at="2026-01-02",
    )
    return m.SearchResult(chunk=chunk, score=0.5, document=document, tags=tags)


def test_what_is_not_known_is_the_default_or_absent() -> None:
    found = vector_result(result({"url": 5, "source_type": None}, tags=["x"]), {})
    assert (found.source_url, found.metadata.collection_id) == ("urn:uuid:u", None)
    assert (found.metadata.source_type, found.metadata.last_modified_by) == ("manual", ENGINE_USER)
    assert (found.metadata.heading, found.metadata.context_breadcrumbs) == (UNSET, UNSET)


@pytest.mark.parametrize(
    ("metadata", "path", "source"),
    [
        ({"source_url": "s", "url": "u"}, "p", "s"),
        ({"source_url": " ", "url": "u"}, "p", "u"),
        ({}, "p", "p"),
    ],
)
def test_the_source_is_the_first_that_is_known(metadata: dict[str, Any], path: str, source: str) -> None:
    assert vector_result(result(metadata, tags=[], path=path), {}).source_url == source


def test_the_collection_is_the_first_that_has_an_id_and_no_tag() -> None:
    found = result({}, tags=["collection:a", "x", "collection:guides"])
    mapped = vector_result(found, {"guides": OWN})
    assert (mapped.metadata.collection_id, mapped.metadata.tags) == (OWN, ["x"])
    assert first_collections([found, result({}, tags=["x"])]) == ["a"]


def test_a_document_without_a_source_type_is_manual() -> None:
    assert (source_types(None), source_types("web"), source_types("manual")) == (
        (),
        ("web",),
        ("manual", None),
    )
