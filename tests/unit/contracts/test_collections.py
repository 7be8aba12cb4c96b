"""Allowed names and ids of collections, and the permission to describe one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from uuid import UUID

import msgspec
import pytest

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.api.ragler import PREFIX, CollectionName, collection_id, may_have_id, names_in
from kb_contracts.semantics.collections import check_description, check_same_collection

OWN, FREE = collection_id("guides"), "3f0c5d7e-9a53-4f1c-8e2b-0b8f3f2f9b11"


def test_an_id_is_derived_from_the_name_alone() -> None:
    """It is the same on every engine, forever, because clients may store it."""
    assert collection_id("documents") == "abb825c1-876b-5092-8385-2428449cf392"
    assert UUID(collection_id("größe & co")).version == 5
    assert collection_id("a") != collection_id("A")


def test_only_its_own_derived_id_belongs_to_a_name() -> None:
    assert may_have_id("a", collection_id("a"))
    assert not may_have_id("a", collection_id("b"))
    assert may_have_id("a", "00000000-0000-4000-8000-000000000000")


def test_names_are_what_follows_the_prefix() -> None:
    tags = ["x", "collection:b", "collection:", "collections:c", "collection:collection:a"]
    assert names_in(tags) == ["b", "collection:a"]


@pytest.mark.parametrize("name", ["a", " a", "API Documentation", "..", "x" * 189, "a:b", "日本語"])
def test_a_name_is_whatever_makes_a_tag(name: str) -> None:
    assert msgspec.convert(name, CollectionName) == name
    assert msgspec.convert(PREFIX + name, m.Tag)


@pytest.mark.parametrize("name", ["", "a ", "a,b", "a/b", "a\n", "a\x00", "x" * 190])
def test_a_collection_name_that_makes_no_valid_tag_is_refused(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(name, CollectionName)
    if name:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(PREFIX + name, m.Tag)


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


def test_a_name_beside_an_id_is_the_same_collections() -> None:
    check_same_collection(None, "guides")
    check_same_collection("guides", "guides")
    with pytest.raises(EngineError, match="send one"):
        check_same_collection("news", "guides")
