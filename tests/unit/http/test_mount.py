"""The adapter: bodies that a strict decoder would refuse, mismatches, and Retry-After."""

from __future__ import annotations

import json
from typing import Annotated

import pytest
from msgspec import Meta

from kb_contracts.api.errors import EngineError
from kb_contracts.api.models import NoteRequest, SearchRequest
from kb_contracts.api.operations import BY_ID, OPERATIONS, ApiSurface, Method, of_surface
from kb_contracts.api.ragler import LIMITS, VectorSearchRequest
from kb_http.mount import problem_response
from kb_http.requests import MAX_VALUES, convert_path, decode_body, holds_too_many_values


@pytest.mark.parametrize("written", ["4", "4.0", "0.4e1"])
def test_a_whole_number_is_an_integer_however_it_is_written(written: str) -> None:
    """JSON has one kind of number, and JSON Schema calls 4.0 an integer."""
    body = f'{{"query": "x", "min_score": 0.5, "top": {written}}}'.encode()
    assert decode_body(body, SearchRequest) == SearchRequest(query="x", min_score=0.5, top=4)


def test_a_body_of_too_many_values_is_refused_before_it_is_read() -> None:
    crowd = b'{"text": "a", "metadata": {"a": [' + b"1," * 100_000 + b"1]}}"
    with pytest.raises(EngineError, match="more than 100000 commas") as refused:
        decode_body(crowd, NoteRequest)
    assert refused.value.code == "invalid_request"
    text = 'a, [b], {"c"}\\\\", ' * 50_000
    assert decode_body(json.dumps({"text": text}).encode(), NoteRequest).text == text


@pytest.mark.parametrize("written", ["4.5", "1e400", "1e30", "-1.0"])
def test_any_other_number_in_its_place_is_refused_by_name(written: str) -> None:
    with pytest.raises(EngineError) as refused:
        decode_body(f'{{"query": "x", "top": {written}}}'.encode(), SearchRequest)
    assert (refused.value.code, refused.value.members["parameter"]) == ("invalid_parameter", "top")


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        (Meta(pattern="^a$", description="the letter a"), "Path parameter 'x' takes the letter a."),
        (Meta(pattern="^a$"), "Path parameter 'x': Expected `str` matching regex '^a$'."),
        (Meta(max_length=1, description="a letter"), "Path parameter 'x': Expected `str` of length <= 1."),
    ],
)
def test_a_refused_pattern_is_explained_in_words(meta: Meta, words: str) -> None:
    """A caller need not read a regular expression if the contract has words for it."""
    with pytest.raises(EngineError) as refused:
        convert_path({"x": "bb"}, {"x": Annotated[str, meta]})
    assert refused.value.detail == words


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ('{"query": "x", "collection_name": "a"}', "unknown_parameter", "Did you mean 'collectionName'?"),
        (
            '{"query": "x", "zz": 1}',
            "unknown_parameter",
            "query, collectionName, collectionId, limit, filters,",
        ),
        (
            '{"query": "x", "filters": {"dateFrom": "a"}}',
            "unknown_parameter",
            "Did you mean 'filters.date_from'?",
        ),
        ('{"collectionName": "a"}', "missing_parameter", "'query'"),
        ('{"query": "x", "collectionId": 5}', "invalid_parameter", "'collectionId'"),
    ],
)
def test_members_are_told_by_their_names_on_the_wire(body: str, code: str, words: str) -> None:
    with pytest.raises(EngineError) as refused:
        decode_body(body.encode(), VectorSearchRequest)
    assert refused.value.code == code
    assert words in refused.value.detail


@pytest.mark.parametrize(("wait", "seconds"), [(0.001, "1"), (30.0, "30"), (30.4, "31"), (59.983, "60")])
def test_retry_after_is_never_too_early(wait: float, seconds: str) -> None:
    response = problem_response(EngineError("rate_limited", "Wait.", retry_after=wait))
    assert response.headers["Retry-After"] == seconds


def test_every_operation_is_in_one_document_and_says_whether_it_changes_anything() -> None:
    """Some POSTs change nothing; every other non-GET operation honours an idempotency key."""
    assert sorted(entry.id for part in ApiSurface for entry in of_surface(part)) == sorted(BY_ID)
    reading = {entry.id for entry in OPERATIONS if entry.reads}
    assert reading == {"checkCitation", "search", "vectorSearch"}
    for entry in OPERATIONS:
        assert entry.mutates == (entry.method is not Method.GET and entry.id not in reading)
    assert LIMITS.keys() == {entry.id for entry in of_surface(ApiSurface.RAGLER) if not entry.mutates}
    assert BY_ID["putCollection"].mutates


@pytest.mark.parametrize(("values", "refused"), [(MAX_VALUES, False), (MAX_VALUES + 1, True)])
def test_the_values_of_a_body_are_counted_outside_of_its_strings(values: int, refused: bool) -> None:
    assert holds_too_many_values(b'["a,b"' + b",0" * (values - 1) + b"]") is refused
