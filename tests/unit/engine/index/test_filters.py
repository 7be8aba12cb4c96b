"""Filters are part of the query: the ranking ignores everything outside them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from kb_engine.store.repository import documents
from tests.support.stores import START, Base, Place, axis, between, new_note, opened, prepared


@pytest.fixture
async def base(base: Base) -> Base:
    """Four documents that differ in every property, an hour apart."""
    manual: dict[str, Any] = {"metadata": {"source_type": "manual"}}
    await base.note("x 1", title="1", tags=["a", "b"], **manual, source_path="/docs/1")
    base.clock.move(hours=1)
    await base.file(
        "x 2", title="2", tags=["a"], format="md", doc_type="markdown", source_path="/docs/50%_off"
    )
    base.clock.move(hours=1)
    await base.file("x 3", title="3", tags=["b", "c"], format="pdf", doc_type="pdf", source_path="/other")
    base.clock.move(hours=1)
    await base.file("x 4", title="4", format="html", doc_type="html", metadata={"source_type": ["manual"]})
    return base


SELECTIONS: tuple[tuple[dict[str, Any], str], ...] = (
    ({}, "1234"),
    ({"tags": ["a"]}, "12"),
    ({"tags": ["a", "b"]}, "1"),
    ({"tags": ["a", "c"]}, ""),
    ({"tags": ["A"]}, ""),
    ({"tags_any": ["a", "c"]}, "123"),
    ({"tags": ["b"], "tags_any": ["a", "zz"]}, "1"),
    ({"doc_type": "pdf"}, "3"),
    ({"formats": ["md", "html"]}, "24"),
    ({"formats": ["MD"]}, ""),
    ({"source_types": ["manual"]}, "1"),
    ({"source_types": ["other"]}, ""),
    ({"source_types": [None]}, "234"),
    ({"source_types": ["manual", None]}, "1234"),
    ({"source_types": ["other", None], "tags": ["b"]}, "3"),
    ({"source_path_prefix": "/docs/"}, "12"),
    ({"source_path_prefix": "/docs/50%"}, "2"),
    ({"source_path_prefix": "/docs/_"}, ""),
    ({"source_path_prefix": "/docs/5%_off"}, ""),
    ({"source_path_prefix": "%"}, ""),
    ({"source_path_prefix": "/DOCS"}, ""),
    ({"doc_type": "pdf", "tags": ["c"], "formats": ["pdf"], "source_path_prefix": "/o"}, "3"),
)
SPANS = (
    (START, None, "1234"),
    (START + timedelta(microseconds=1), None, "234"),
    (None, START + timedelta(hours=1), "12"),
    (None, START - timedelta(microseconds=1), ""),
    (START + timedelta(hours=1), START + timedelta(hours=2), "23"),
    (START + timedelta(hours=3), START, ""),
)


async def test_a_selection_leaves_the_documents_that_it_names(base: Base, subtests: pytest.Subtests) -> None:
    for selection, expected in SELECTIONS:
        for mode in ("fts", "vector", "hybrid"):
            with subtests.test(mode=mode, **selection):
                assert sorted(await base.titles("x", mode, vector=axis(0), **selection)) == list(expected)


async def test_both_ends_of_a_span_are_inside(base: Base, subtests: pytest.Subtests) -> None:
    for begin, end, expected in SPANS:
        with subtests.test(begin=begin, end=end):
            assert sorted(await base.titles("x", date_from=begin, date_to=end)) == list(expected)


async def test_a_further_source_of_a_duplicate_counts_for_the_prefix(base: Base) -> None:
    await base.ingest(new_note("x 1", source_path="/second/1"), prepared("x 1"))
    assert await base.titles("x", source_path_prefix="/second") == ["1"]


async def test_a_change_of_tags_shows_in_the_next_search(base: Base) -> None:
    await base.store.once(None, documents.remove_tag, 1, "a", None)
    await base.store.once(None, documents.add_tags, 4, ["a"], None)
    assert sorted(await base.titles("x", tags=["a"])) == ["2", "4"]


async def test_one_document_in_a_hundred_is_found_however_bad_its_score(place: Place) -> None:
    """All others match better, and are filtered out before the ranking rather than after."""
    async with opened(place) as base:
        for number in range(100):
            tags = ["rare"] if number == 57 else ["common"]
            cosine = 0.01 if number == 57 else 0.9
            text = "apple" if number == 57 else "apple apple apple pear"
            await base.note(text, tags=tags, dedup_scope=str(number), vectors=[between(0, 1, cosine)])
        for mode in ("fts", "vector", "hybrid"):
            found = await base.find("apple pear", mode, vector=axis(0), tags=["rare"], top=1)
            assert [result.document.id for result in found.results] == [58]
            assert found.total == (1 if mode != "vector" else 0)  # a cosine of 0.01 is no match
