"""Promises on responses for a model's context: citations and their checks, and diverse pages."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_verify.client import Client, problem

QUOTE = "Pensions are revalued each spring, by the index of prices."
LONG = "\n\n".join(
    f"Ledger entry {number} was copied by the archivist of the harbour." for number in range(90)
)


def cited(kb: Client, query: str = "pensions revalued", **body: Any) -> m.Citation:
    """Return the citation of the best result."""
    citation = kb.search(query, mode="fts", top=1, citations=True, **body).results[0].citation
    assert isinstance(citation, m.Citation)
    return citation


def checked(kb: Client, citation: m.Citation, **changes: Any) -> m.CitationCheck:
    body = msgspec.to_builtins(msgspec.structs.replace(citation, **changes))
    return kb.call(ops.CHECK_CITATION, json=body)


def test_a_citation_names_document_place_and_quote(kb: Client) -> None:
    """The hash is the first half of the SHA-256 of exactly the text in the response."""
    kb.note(LONG)
    (result,) = kb.search("ledger entry", mode="fts", top=1, citations=True).results
    chunk, citation = result.chunk, result.citation
    assert isinstance(citation, m.Citation)
    assert (citation.document, citation.version) == (result.document.uid, result.document.version)
    assert (citation.page, citation.heading) == (chunk.page, chunk.heading)
    assert (citation.start, citation.end) == (chunk.start, chunk.end)
    assert citation.hash == hashlib.sha256(chunk.text.encode()).hexdigest()[:32]
    assert chunk.text.startswith(citation.begins)


def test_nothing_is_cited_unasked(kb: Client) -> None:
    kb.note(QUOTE)
    assert kb.search("pensions").results[0].citation is UNSET


def test_what_is_cited_is_what_was_answered(kb: Client) -> None:
    """For a text that was cut, the remaining text; for a location, the whole passage."""
    kb.note(LONG)
    whole = cited(kb, "ledger entry")
    cut = cited(kb, "ledger entry", max_chars=100)
    assert (cut.start, cut.end - cut.start) == (whole.start, 100)
    assert cited(kb, "ledger entry", detail="locations") == whole
    assert [checked(kb, each).status for each in (whole, cut)] == ["there", "there"]


def test_a_quote_is_there_until_it_is_changed(kb: Client) -> None:
    """Also if the document has changed elsewhere, as its version shows."""
    document = kb.stored_note(QUOTE)
    citation = cited(kb)
    check = checked(kb, citation)
    assert (check.status, check.text, check.citation) == ("there", QUOTE, citation)
    assert (check.document_id, check.version) == (document.id, document.version)
    changed = kb.patched(document.id, text=f"{QUOTE}\n\nThis was not always so.")
    check = checked(kb, citation)
    assert (check.status, check.text, check.version) == ("there", QUOTE, changed.version)
    assert check.citation is not None
    assert check.citation.version == changed.version > citation.version


def test_a_quote_that_has_moved_is_found_in_its_new_place(kb: Client) -> None:
    """The new place can be cited from then on."""
    document = kb.note(QUOTE)
    citation = cited(kb)
    before = "Pensions are paid each month. "
    kb.patched(document, text=f"{before}{QUOTE} This was not always so.")
    check = checked(kb, citation)
    assert (check.status, check.text) == ("moved", QUOTE)
    assert check.citation is not None
    assert (check.citation.start, check.citation.end) == (len(before), len(before) + len(QUOTE))
    assert (check.citation.document, check.citation.hash) == (citation.document, citation.hash)
    again = checked(kb, check.citation)
    assert (again.status, again.citation) == ("there", check.citation)


def test_of_several_places_the_nearest_is_the_new_one(kb: Client) -> None:
    document = kb.note(QUOTE)
    citation = cited(kb)
    kb.patched(document, text=f"So it was: {QUOTE} So it is: {QUOTE}")
    check = checked(kb, citation)
    assert check.status == "moved"
    assert check.citation is not None
    assert check.citation.start == len("So it was: ")


def test_a_quote_in_other_words_is_changed(kb: Client) -> None:
    document = kb.note(QUOTE)
    citation = cited(kb)
    now = kb.patched(document, text=QUOTE.replace("spring", "autumn"))
    check = checked(kb, citation)
    assert (check.status, check.document_id, check.version) == ("changed", document, now.version)
    assert (check.citation, check.text) == (None, None)


def test_a_quote_of_a_removed_document_is_gone(kb: Client) -> None:
    document = kb.note(QUOTE)
    citation = cited(kb)
    kb.call(ops.DELETE_DOCUMENT, document)
    check = checked(kb, citation)
    assert msgspec.structs.astuple(check) == ("gone", None, None, None, None)


def test_a_quote_of_a_file_is_there(kb: Client) -> None:
    kb.file("pensions.md", f"# Pensions\n\n{QUOTE}".encode())
    citation = cited(kb)
    assert checked(kb, citation).status == "there"
    assert checked(kb, citation, hash="0" * 32).status == "changed"


@pytest.mark.parametrize(
    "changes",
    [
        {"hash": "0" * 32},
        {"start": 5, "end": 5},
        {"start": 5, "end": 4},
        {"start": m.MAX_INTEGER, "end": m.MAX_INTEGER},
        {"end": m.MAX_INTEGER},
    ],
)
def test_what_is_no_quote_is_found_nowhere(kb: Client, changes: dict[str, Any]) -> None:
    kb.note(QUOTE)
    assert checked(kb, cited(kb), **changes).status == "changed"


@pytest.mark.parametrize(
    ("changes", "parameter"),
    [
        ({"hash": "x"}, "hash"),
        ({"hash": "0" * 1_000_000}, "hash"),
        ({"start": -1}, "start"),
        ({"document": "../x"}, "document"),
        ({"begins": ""}, "begins"),
    ],
)
def test_what_is_no_citation_is_refused_by_name(kb: Client, changes: dict[str, Any], parameter: str) -> None:
    kb.note(QUOTE)
    body = {**msgspec.to_builtins(cited(kb)), **changes}
    kb.refused("invalid_parameter", ops.CHECK_CITATION, json=body, parameter=parameter)


# --- what a page is made of -----------------------------------------------------------------------

REPORT = (
    "The granite quarry by the frozen river was opened in spring and closed in autumn when the carts could "
    "no longer pass the bridge, so the archivist of the harbour copied the ledger and sent it to the library."
)


def test_a_near_duplicate_becomes_part_of_the_better_result(kb: Client) -> None:
    """The better result lists the duplicate; without `collapse`, both are results."""
    notes = {kb.note(REPORT), kb.note(f"{REPORT} It is there.")}
    other = kb.note("Granite is found in the quarry.")
    assert set(kb.found("granite quarry")) == {*notes, other}
    answer = kb.search("granite quarry", mode="fts", collapse=True)
    found = {result.document.id: result for result in answer.results}
    (kept,) = notes & found.keys()
    assert set(found) == {kept, other}
    duplicates = found[kept].duplicates
    assert duplicates is not UNSET
    assert [each.document_id for each in duplicates] == [*(notes - {kept})]
    assert found[other].duplicates is UNSET
    assert answer.total == 3


def test_another_figure_makes_no_duplicate(kb: Client) -> None:
    notes = {kb.note(f"{REPORT} It weighed {tons} tons.") for tons in (17, 18)}
    results = kb.search("granite quarry", mode="fts", collapse=True).results
    assert {result.document.id for result in results} == notes


def test_neighbouring_results_become_one(kb: Client) -> None:
    """The better one gets the others before and after it, and no result is lost."""
    kb.note(LONG)
    plain = kb.search("ledger entry archivist", mode="fts", top=5)
    merged = kb.search("ledger entry archivist", mode="fts", top=5, collapse=True)
    rows = [[*result.before, result.chunk, *result.after] for result in merged.results]
    for row in rows:
        assert [chunk.index for chunk in row] == list(range(row[0].index, row[0].index + len(row)))
    chunks = [chunk.id for row in rows for chunk in row]
    assert len(chunks) == len(set(chunks))
    assert {result.chunk.id for result in plain.results} <= set(chunks)
    assert max((len(row) for row in rows), default=0) > 1
    assert merged.results[0].chunk.id == plain.results[0].chunk.id
    assert merged.total == plain.total


def test_locations_name_what_was_merged(kb: Client) -> None:
    """Without text, and without neighbours that were not found by the search."""
    kb.note(LONG)
    body = {"mode": "fts", "top": 5, "collapse": True}
    merged = kb.search("ledger entry archivist", **body).results
    bare = kb.search("ledger entry archivist", detail="locations", neighbors=1, **body).results
    assert [each for each in merged if each.before or each.after] != []
    for result in merged:
        for chunk in (result.chunk, *result.before, *result.after):
            chunk.text = ""
    assert bare == merged


def test_neighbors_that_are_wanted_come_around_merged_results(kb: Client) -> None:
    kb.note(LONG)
    body = {"mode": "fts", "top": 3, "collapse": True}
    merged = kb.search("ledger entry archivist", **body).results
    wider = kb.search("ledger entry archivist", neighbors=1, **body).results
    for few, more in zip(merged, wider, strict=True):
        assert len(more.before) >= len(few.before)
        assert len(more.after) >= len(few.after)
        assert more.before or more.after


def test_one_document_does_not_fill_a_page_while_others_compare(kb: Client) -> None:
    book = kb.note(LONG)
    others = {kb.note(f"Ledger of the harbour, volume {number}: entry and copy.") for number in range(3)}
    plain = kb.search("ledger entry harbour", mode="fts", top=100)
    page = kb.search("ledger entry harbour", mode="fts", top=5, per_document=2)
    documents = [result.document.id for result in page.results]
    assert sorted(documents) == sorted([book, book, *others])
    assert page.total == plain.total
    scores = [result.score for result in page.results]
    assert scores == sorted(scores, reverse=True)
    ranks = {result.chunk.id: result.score for result in plain.results}
    assert [ranks[result.chunk.id] for result in page.results] == scores


def test_one_document_fills_a_page_where_nothing_else_compares(kb: Client) -> None:
    """Instead of leaving room, or filling it with results of low relevance."""
    kb.note(LONG)
    plain = kb.search("ledger entry archivist", mode="fts", top=5)
    assert kb.search("ledger entry archivist", mode="fts", top=5, per_document=1).results == plain.results


@pytest.mark.parametrize("per_document", [0, 101, "2"])
def test_a_number_out_of_range_is_refused(kb: Client, per_document: Any) -> None:
    response = kb.request(ops.SEARCH, json={"query": "x", "per_document": per_document})
    assert problem(response, "invalid_parameter").parameter == "per_document"
