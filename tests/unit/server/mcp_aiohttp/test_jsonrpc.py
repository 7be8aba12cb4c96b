"""JSON-RPC on the wire: what is a message, and answers that are always writable."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from mcp_aiohttp.protocol.jsonrpc import (
    InvalidRequestError,
    Notification,
    Reply,
    Request,
    as_message,
    error_bytes,
    notification_bytes,
)
from tests.support.json_values import values


@pytest.mark.parametrize("request_id", [0, -1, 7, "1", ""])
def test_a_request_has_a_string_or_an_integer_for_its_id(request_id: object) -> None:
    """Zero and the empty string are ids like any other."""
    message = as_message({"jsonrpc": "2.0", "id": request_id, "method": "m", "params": {"a": 1}})
    assert message == Request(request_id, "m", {"a": 1})  # type: ignore[arg-type]


def test_a_message_without_an_id_is_a_notification() -> None:
    assert as_message({"jsonrpc": "2.0", "method": "m"}) == Notification("m", None)


@pytest.mark.parametrize("member", ["result", "error"])
def test_a_message_with_a_result_or_an_error_is_a_reply(member: str) -> None:
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
    with pytest.raises(InvalidRequestError):
        as_message(value)


def test_an_invalid_request_is_answered_under_its_id_where_it_has_one() -> None:
    """So that the sender can match it."""
    with pytest.raises(InvalidRequestError) as caught:
        as_message({"jsonrpc": "2.0", "id": "a", "method": None})
    assert caught.value.id == "a"


@given(values)
def test_every_value_makes_a_message_or_an_invalid_request(value: Any) -> None:
    try:
        as_message(value)
    except InvalidRequestError as error:
        error_bytes(error.id, -32600, str(error))


def test_an_error_whose_request_could_not_be_read_carries_a_null_id() -> None:
    """JSON-RPC wants the member, not its absence."""
    assert json.loads(error_bytes(None, -32700, "no")) == {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": -32700, "message": "no", "data": {"error_type": "parse_error", "details": {}}},
    }


def test_params_of_none_are_left_out_of_a_notification() -> None:
    """`"params": null` is not JSON-RPC."""
    assert json.loads(notification_bytes("n", None)) == {"jsonrpc": "2.0", "method": "n"}


@pytest.mark.requirement("N67")
@pytest.mark.parametrize(
    ("code", "data", "told"),
    [
        (
            -32601,
            "tools/frobnicate",
            {"error_type": "method_not_found", "details": {"value": "tools/frobnicate"}},
        ),
        (-32602, "", {"error_type": "invalid_params", "details": {}}),
        (-32602, {"error_type": "unknown_tool"}, {"error_type": "unknown_tool", "details": {}}),
        (-32000, {"error_type": "a", "details": {"b": 1}}, {"error_type": "a", "details": {"b": 1}}),
        (
            -32022,
            {"supported": ["a"]},
            {"error_type": "server_error", "supported": ["a"], "details": {"supported": ["a"]}},
        ),
        (-32603, None, {"error_type": "internal_error", "details": {}}),
    ],
)
def test_the_data_of_an_error_names_its_type(code: int, data: Any, told: dict[str, Any]) -> None:
    assert json.loads(error_bytes(1, code, "words", data))["error"]["data"] == told
