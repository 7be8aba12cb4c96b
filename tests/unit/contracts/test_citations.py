"""Citations: the hashed text, the search for a quote, and the line that an agent sends back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_contracts.api import models as m
from kb_contracts.semantics.search import as_line, citation_of, find_quote, from_line, quote_hash
from tests.support.contract_objects import UID, chunk_with

texts = st.text(min_size=1, max_size=60)


def cited(text: str, start: int = 0, page: int | None = None) -> m.Citation:
    return citation_of(UID, 3, chunk_with(text=text, page=page, heading="A > B", start=start))


def test_the_hash_is_the_first_half_of_the_sha_256_of_the_exact_text() -> None:
    """The example can be checked with: printf abc | sha256sum."""
    assert quote_hash("abc") == "ba7816bf8f01cfea414140de5dae2223"
    assert quote_hash("abc ") != quote_hash("abc")


def test_of_a_very_long_text_the_beginning_is_cited() -> None:
    citation = cited("x" * (m.MAX_QUOTE_CHARS + 1))
    assert citation.end == m.MAX_QUOTE_CHARS


@given(before=texts, quote=texts, after=texts)
def test_a_quote_is_found_at_its_place_and_after_it_has_moved(before: str, quote: str, after: str) -> None:
    there = find_quote(cited(quote, len(before)), before + quote + after)
    assert there is not None
    assert (there.start, there.text) == (len(before), quote)
    moved = find_quote(cited(quote), before + quote + after, moved=True)
    assert moved is not None
    assert moved.text == quote
    assert moved.start <= len(before)


def test_a_quote_that_may_not_have_moved_is_found_at_its_place_only() -> None:
    assert find_quote(cited("granite", 3), "granite") is None


@given(quote=st.text("ab", min_size=1, max_size=3), text=st.text("ab", max_size=12), start=st.integers(0, 15))
def test_of_several_places_the_nearest_is_found(quote: str, text: str, start: int) -> None:
    places = [place for place in range(len(text)) if text.startswith(quote, place)]
    found = find_quote(cited(quote, start), text, moved=True)
    nearest = min(places, key=lambda place: abs(place - start), default=None)
    assert (None if found is None else found.start) == nearest


def test_a_text_may_be_a_part_of_the_documents() -> None:
    """A chunk is such a part; a quote before it is not found."""
    citation = cited("granite", 100)
    found = find_quote(citation, "red granite", begins_at=96)
    assert found is not None
    assert found.start == 100
    assert find_quote(citation, "granite", begins_at=101) is None


def test_a_text_of_nothing_but_beginnings_takes_few_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The author of the note may be hostile."""
    hashed = []

    def counted(text: str) -> str:
        hashed.append(text)
        return "another"

    citation = cited("x" * 5_000)
    monkeypatch.setattr("kb_contracts.semantics.search.quote_hash", counted)
    assert find_quote(citation, "x" * 1_000_000, moved=True) is None
    assert len(hashed) <= 501


@given(
    text=st.text(min_size=1, max_size=40), start=st.integers(0, 2**40), page=st.none() | st.integers(0, 99)
)
def test_a_line_stands_for_its_citation(text: str, start: int, page: int | None) -> None:
    """The heading is left out, because nothing compares it."""
    citation = cited(text, start, page)
    line = as_line(citation)
    assert line.isascii()
    assert " " not in line
    assert len(line) <= m.MAX_CITATION_CHARS
    assert from_line(f" {line}\n") == msgspec.structs.replace(citation, heading=None)


GOOD = as_line(cited("Pensions are revalued", 840, 12))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "x",
        GOOD[:-30],
        GOOD.replace("840", "-840"),
        GOOD.replace(":12:", ":x:"),
        GOOD.replace("840", "9" * 30),
        GOOD.replace(UID, "../etc"),
        GOOD + "x" * 1_000_000,
        GOOD.replace("840", "८४०"),
        "9" * 1_000_000,
    ],
)
def test_a_line_that_is_no_citation_is_a_value_error(line: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_line(line)


@given(st.text(max_size=300))
def test_no_line_does_harm(line: str) -> None:
    try:
        citation: Any = from_line(line)
    except ValueError:
        return
    assert isinstance(citation, m.Citation)
