"""For any arguments and any response of the backend, a result fits its schema or is a known error."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_contracts.api.operations import BY_ID
from kb_contracts.api.ragler import VectorSearchRequest
from kb_server.engine_client.errors import EngineFault
from kb_server.engine_client.http1 import RawResponse
from kb_server.engine_client.ragler import Collection, CollectionDetail, Collections, Passages
from kb_server.engine_client.ragler_http import read
from kb_server.hosting.calls import Calls
from kb_server.observability.metrics import Metrics
from kb_server.schema import output_schema
from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.tool import Call
from kb_server.toolsets import build_toolset
from tests.support.ragler import API_DOCS, DETAIL, FOUND, PASSAGE, THREE

words = st.text(max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.floats(allow_nan=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "query": words | values,
        "collection_id": st.just(API_DOCS) | st.uuids().map(str) | values,
        "limit": st.integers(-1, 102) | values,
        "filters": st.fixed_dictionaries(
            {},
            optional={
                "source_type": st.sampled_from(["web", "email"]) | values,
                "date_from": st.dates().map(str) | st.datetimes().map(str) | values,
                "date_to": st.sampled_from(["2026-02-30", "9999-12-31T23:59:59-12:00"]) | values,
                "tags": st.lists(words, max_size=3) | values,
            },
        )
        | values,
        "other": values,
    },
)


def mutated(whole: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """`whole` with some members replaced by random values, and additional ones."""
    return st.dictionaries(st.sampled_from([*whole, "other"]), values, max_size=3).map(
        lambda changes: {**whole, **changes}
    )


passages = mutated(PASSAGE["metadata"]).flatmap(lambda metadata: mutated({**PASSAGE, "metadata": metadata}))
answers = st.one_of(
    values,
    mutated(FOUND),
    mutated(DETAIL),
    st.lists(passages, max_size=3).map(lambda results: {**FOUND, "results": results}),
    st.lists(mutated(DETAIL), max_size=3).map(lambda found: {"collections": found}),
)


class _Answering:
    """A backend with a fixed response, which is parsed as the client parses it."""

    def __init__(self, answer: Any) -> None:
        self._answer = RawResponse(200, "application/json", json.dumps(answer).encode())

    async def search(self, _request: VectorSearchRequest) -> Passages:
        return read(BY_ID["vectorSearch"], self._answer, Passages)

    async def collections(self) -> list[Collection]:
        return read(BY_ID["listCollections"], self._answer, Collections).collections

    async def collection(self, _collection_id: str) -> CollectionDetail:
        return read(BY_ID["getCollection"], self._answer, CollectionDetail)


class _Echoing(_Answering):
    """Returns the document's example for any request."""

    def __init__(self) -> None:
        super().__init__(FOUND)

    async def collection(self, collection_id: str) -> CollectionDetail:
        return CollectionDetail(id=collection_id, name="API Documentation")


def told(backend: Any, tool: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a call, after validation of its content; raise if the tool raises."""
    settings = ServerSettings(home=Path("unused"), ragler_api_key="k")
    toolset = build_toolset("ragler", Services(settings, ragler=backend))
    result = asyncio.run(Calls(toolset, Metrics()).outcome(tool, given, Call())).as_result()
    if not result["isError"]:
        jsonschema.validate(result["structuredContent"], output_schema(toolset.by_name()[tool].result))
    return result


@given(arguments, st.sampled_from(THREE))
def test_odd_arguments_are_told_and_break_nothing(given: dict[str, Any], tool: str) -> None:
    result = told(_Echoing(), tool, given)
    if result["isError"] and tool != "list_collections":
        assert json.loads(result["content"][0]["text"])["error"] in (
            "missing_required_parameter",
            "invalid_parameter",
            "contradiction",
        )


@given(answers, st.sampled_from(THREE))
def test_odd_answers_are_told_and_break_nothing(answer: Any, tool: str) -> None:
    given = {"query": "x"} if tool == "search_knowledge" else {"collection_id": API_DOCS}
    result = told(_Answering(answer), tool, {} if tool == "list_collections" else given)
    if result["isError"]:
        assert json.loads(result["content"][0]["text"])["error"] == "backend_bad_answer"


@given(st.binary(max_size=60), st.integers(100, 599), st.sampled_from(["application/json", "text/html", ""]))
def test_odd_bytes_are_a_fault(body: bytes, status: int, kind: str) -> None:
    with pytest.raises(EngineFault):
        read(BY_ID["listCollections"], RawResponse(status, kind, body), Collections)


def test_numbers_past_all_bounds_are_a_bad_answer() -> None:
    """The result would contain invalid JSON."""
    for odd in (b'{"results":[],"total":1e999}', b'{"results":[],"executionTime":1e400}'):
        with pytest.raises(EngineFault):
            read(BY_ID["vectorSearch"], RawResponse(200, "application/json", odd), Passages)
    assert msgspec.json.encode(
        read(BY_ID["vectorSearch"], RawResponse(200, "application/json", b'{"results":[]}'), Passages)
    )
