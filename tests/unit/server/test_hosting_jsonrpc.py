"""JSON-RPC on the wire: strict reading, and answers that are always writable."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kb_server.hosting.jsonrpc import (
    MAX_DEPTH,
    InvalidRequestError,
    Notification,
    ParseError,
    Reply,
    Request,
    as_message,
    error_bytes,
    notification_bytes,
    parse,
    result_bytes,
)

# Text without half surrogate pairs and integers of 64 bits: what a strict reader takes.
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=20)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), inner)
    ),
    max_leaves=20,
)


@settings(deadline=None)
@given(values)
def test_any_json_value_is_read_as_it_was_written(value: Any) -> None:
    """Escaped or not."""
    assert parse(json.dumps(value).encode()) == value
    assert parse(json.dumps(value, ensure_ascii=False).encode()) == value


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    """Never another exception, and what is read can be written again."""
    try:
        value = parse(body)
    except ParseError:
        return
    result_bytes(1, {"value": value})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"a":1} x', "not JSON"),
        (b"{'a':1}", "not JSON"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b'"\xff"', "not UTF-8"),
        (b'"\xed\xa0\x80"', "not UTF-8"),
        (b'{"a":1,"a":2}', "repeats a key"),
        (b'{"x":{"a":1,"\\u0061":2}}', "repeats a key"),
        (b"NaN", "NaN"),
        (b'{"a":-Infinity}', "Infinity"),
        (b"1e999", "double"),
        (b"-1e999", "double"),
        (b"9223372036854775808", "64 bits"),
        (b"-92233720368547758080", "64 bits"),
        (b"1" * 5000, "64 bits"),
        (b'"\\ud800"', "surrogate"),
        (b'{"\\uDFFF":1}', "surrogate"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "deeper"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "deeper"),
        (b"[" * 1_000_000, "deeper"),
    ],
)
def test_what_is_ambiguous_or_dangerous_is_refused(body: bytes, words: str) -> None:
    """With a reason that quotes nothing of the body."""
    with pytest.raises(ParseError) as caught:
        parse(body)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 120


def test_the_depth_allowed_is_the_depth_announced() -> None:
    """`MAX_DEPTH` levels pass, however many brackets stand beside one another."""
    assert parse(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    assert parse(b"[" + b",".join([b"[]"] * 1000) + b"]") == [[]] * 1000


def test_a_whole_surrogate_pair_is_a_character() -> None:
    """Only halves are refused."""
    assert parse(b'"\\ud83d\\ude00"') == "\N{GRINNING FACE}"


def test_the_ends_of_the_integer_range_are_read() -> None:
    """And can be answered under."""
    for number in (2**63 - 1, -(2**63) + 1, 10**18):
        assert parse(str(number).encode()) == number
        assert json.loads(result_bytes(number, {}))["id"] == number


@pytest.mark.parametrize("request_id", [0, -1, 7, "1", ""])
def test_a_request_has_a_string_or_an_integer_for_its_id(request_id: object) -> None:
    """Zero and the empty string are ids like any other."""
    message = as_message({"jsonrpc": "2.0", "id": request_id, "method": "m", "params": {"a": 1}})
    assert message == Request(request_id, "m", {"a": 1})  # type: ignore[arg-type]


def test_a_message_without_an_id_is_a_notification() -> None:
    """Its params may be absent."""
    assert as_message({"jsonrpc": "2.0", "method": "m"}) == Notification("m", None)


@pytest.mark.parametrize("member", ["result", "error"])
def test_a_message_with_a_result_or_an_error_is_a_reply(member: str) -> None:
    """Which nobody here waits for."""
    assert isinstance(as_message({"jsonrpc": "2.0", "id": 1, member: {}}), Reply)


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        "x",
        [],
        [{"jsonrpc": "2.0", "id": 1, "method": "m"}],
        {},
        {"id": 1, "method": "m"},
        {"jsonrpc": "1.0", "id": 1, "method": "m"},
        {"jsonrpc": 2.0, "id": 1, "method": "m"},
        {"jsonrpc": "2.0", "id": 1},
        {"jsonrpc": "2.0", "id": 1, "method": 5},
        {"jsonrpc": "2.0", "id": 1, "method": "m", "params": [1]},
        {"jsonrpc": "2.0", "id": None, "method": "m"},
        {"jsonrpc": "2.0", "id": True, "method": "m"},
        {"jsonrpc": "2.0", "id": 1.5, "method": "m"},
        {"jsonrpc": "2.0", "id": {}, "method": "m"},
    ],
)
def test_what_is_no_message_is_an_invalid_request(value: object) -> None:
    """A batch among them."""
    with pytest.raises(InvalidRequestError):
        as_message(value)


def test_an_invalid_request_is_answered_under_its_id_where_it_has_one() -> None:
    """So that the sender can match it."""
    with pytest.raises(InvalidRequestError) as caught:
        as_message({"jsonrpc": "2.0", "id": "a", "method": None})
    assert caught.value.id == "a"


@settings(deadline=None)
@given(values)
def test_every_value_makes_a_message_or_an_invalid_request(value: Any) -> None:
    """Never another exception."""
    try:
        as_message(value)
    except InvalidRequestError as error:
        error_bytes(error.id, -32600, str(error))


def test_an_error_whose_request_could_not_be_read_carries_a_null_id() -> None:
    """JSON-RPC wants the member, not its absence."""
    assert json.loads(error_bytes(None, -32700, "no")) == {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": -32700, "message": "no", "data": {"error_type": "parse_error"}},
    }


def test_params_of_none_are_left_out_of_a_notification() -> None:
    """`"params": null` is not JSON-RPC."""
    assert json.loads(notification_bytes("n", None)) == {"jsonrpc": "2.0", "method": "n"}


@pytest.mark.parametrize(
    ("code", "data", "told"),
    [
        (-32601, "tools/frobnicate", {"error_type": "method_not_found", "details": "tools/frobnicate"}),
        (-32602, "", {"error_type": "invalid_params"}),
        (-32602, {"error_type": "unknown_tool"}, {"error_type": "unknown_tool"}),
        (-32022, {"supported": ["a"]}, {"error_type": "server_error", "supported": ["a"]}),
        (-32603, None, {"error_type": "internal_error"}),
    ],
)
def test_the_data_of_an_error_names_its_type(code: int, data: Any, told: dict[str, Any]) -> None:
    """Beside what a client reads there by its own name."""
    assert json.loads(error_bytes(1, code, "words", data))["error"]["data"] == told
