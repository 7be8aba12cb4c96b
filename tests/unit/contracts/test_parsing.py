"""From strings and bytes to models: what fits, and how a misfit is told."""

from __future__ import annotations

import json

import pytest

from kb_contracts import EngineError
from kb_contracts.models import TagsRequest
from kb_contracts.operations import DocumentQuery, DocumentsQuery, JobsQuery
from kb_contracts.parsing import convert_query, decode_body


def test_a_query_becomes_its_model() -> None:
    """Numbers and booleans are read from their words; what is not given has its default."""
    query = convert_query([("chunks", "false"), ("chunk_limit", "7")], DocumentQuery)
    assert query == DocumentQuery(chunks=False, chunk_offset=0, chunk_limit=7)


@pytest.mark.parametrize("value", ["null", "None", ""])
def test_null_is_no_way_to_leave_a_parameter_out(value: str) -> None:
    """A caller that formats an absent value into the URL is told, instead of being answered with all."""
    with pytest.raises(EngineError) as refused:
        convert_query([("status", value)], JobsQuery)
    assert (refused.value.code, refused.value.members["parameter"]) == ("invalid_parameter", "status")


def test_a_parameter_twice_is_refused() -> None:
    """Which of the two counts would be a guess."""
    with pytest.raises(EngineError, match="twice"):
        convert_query([("limit", "1"), ("limit", "2")], JobsQuery)


def test_an_unknown_query_parameter_is_named() -> None:
    """A typing error is not taken for a filter that matches all."""
    with pytest.raises(EngineError) as refused:
        convert_query([("stauts", "failed")], JobsQuery)
    assert (refused.value.code, refused.value.members["parameter"]) == ("unknown_parameter", "stauts")


@pytest.mark.parametrize("tag", ["", " a", "a ", "a,b", "a/b", "a\n", "\x00", ".", "..", "x" * 201])
def test_what_is_no_tag_is_refused_everywhere(tag: str) -> None:
    """In a body and in a query alike; `.` and `..` would change the path that removes the tag."""
    with pytest.raises(EngineError) as in_query:
        convert_query([("tag", tag)], DocumentsQuery)
    with pytest.raises(EngineError) as in_body:
        decode_body(b'{"tags":[%s]}' % _json(tag), TagsRequest)
    assert in_query.value.code == in_body.value.code == "invalid_parameter"


@pytest.mark.parametrize("raw", [b"", b"{", b"[1", b"\xff", b'"\\ud800"', b"[" * 100_000])
def test_bytes_that_are_no_json_are_an_invalid_request(raw: bytes) -> None:
    """However they are broken, and however deep."""
    with pytest.raises(EngineError) as refused:
        decode_body(raw, TagsRequest)
    assert refused.value.code in {"invalid_request", "invalid_parameter"}


def _json(text: str) -> bytes:
    return json.dumps(text).encode()
