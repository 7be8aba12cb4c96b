"""JSON-RPC messages: strict JSON, validity, and responses that can always be encoded."""

from __future__ import annotations

import codecs
import json
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from mcp_aiohttp.protocol.jsonrpc import (
    MAX_DEPTH,
    InvalidRequestError,
    Notification,
    ParseError,
    Reply,
    Request,
    as_message,
    error_bytes,
    is_laborious,
    notification_bytes,
    parse,
    result_bytes,
)
from tests.support.json_values import values


@pytest.mark.parametrize("request_id", [0, -1, 7, "1", ""])
def test_a_request_has_a_string_or_an_integer_for_its_id(request_id: object) -> None:
    """Zero and the empty string are valid ids."""
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
def test_a_value_that_is_no_message_is_an_invalid_request(value: object) -> None:
    with pytest.raises(InvalidRequestError):
        as_message(value)


def test_an_invalid_request_is_answered_under_its_id_where_it_has_one() -> None:
    """The sender can then match it."""
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
    """JSON-RPC requires the member."""
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


LONG = b" " * 100_000
"""Padding that makes a body long enough for the fast reader; it changes neither value nor error."""


def read(body: bytes) -> str:
    """Return the result of `parse` for comparison; for a refusal, the reason without the position."""
    try:
        return repr(parse(body))
    except ParseError as error:
        return f"refused: {error}".partition(" at character ")[0]


@given(values)
def test_any_json_value_is_read_as_it_was_written(value: Any) -> None:
    assert parse(json.dumps(value).encode()) == value
    assert parse(json.dumps(value, ensure_ascii=False).encode()) == value
    # This compares the type of each number too.
    assert repr(parse(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())) == repr(value)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
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
        (b"\xef\xbb\xbf{}", "byte order mark (BOM)"),
        ("{}".encode("utf-16"), "byte order mark (BOM)"),
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
        (b"[" * 100_000, "deeper"),
        (b"[" * 1_000_000, "more than 100000"),
        (b"[" + b"1," * 100_000 + b"1]", "more than 100000"),
        (b"[" + b'"",' * 4_000_000 + b"1]", "more than 100000"),
        (b"[" + b'"\\"a",' * 100_000 + b"1]", "more than 100000"),
        (b'{"a":[' + b"{}," * 100_000 + b"1]}", "more than 100000"),
    ],
)
def test_ambiguous_json_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse(body)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize("text", ["a, [b], {c}, ", '"quoted", ', "back\\\\slash, ", '\\\\", [', "\n,é,"])
def test_a_long_text_is_no_crowd_of_values(text: str) -> None:
    whole = {"text": text * 100_000}
    assert parse(json.dumps(whole).encode()) == whole
    assert parse(json.dumps(whole, ensure_ascii=False).encode()) == whole


def test_as_many_values_as_may_be_are_read() -> None:
    assert len(parse(b"[" + b"1," * 99_998 + b"1]")) == 99_999


def test_the_depth_allowed_is_the_depth_announced() -> None:
    """`MAX_DEPTH` levels pass, with any number of siblings."""
    assert parse(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    assert parse(b"[" + b",".join([b"[]"] * 1000) + b"]") == [[]] * 1000


def test_a_whole_surrogate_pair_is_a_character() -> None:
    assert parse(b'"\\ud83d\\ude00"') == "\N{GRINNING FACE}"


def test_the_ends_of_the_integer_range_are_read() -> None:
    for number in (2**63 - 1, -(2**63) + 1, 10**18):
        assert parse(str(number).encode()) == number
        assert json.loads(result_bytes(number, {}))["id"] == number


damages = st.lists(
    st.tuples(
        st.integers(0, 400),
        st.integers(0, 3),
        st.sampled_from(
            [
                b"", b":", b'":', b'"', b"\\", b"\\u003a", b"\\u003A", b"\\ud83d", b"\\ude00", b'"a":1,',
                b'{"a":', b"[", b"]", b"{", b"}", b",", b"0", b"9" * 19, b"-", b".", b"e9", b"NaN", b"\xff",
                b"\xc3", b"\x00", b"\n", b" ", b"\xef\xbb\xbf", b"\xed\xa0\x80", b'"a" :1,',
                b'"a\\u003a":1,', b'"\\u0061":1,',
            ]
        ),
    ),
    max_size=4,
)  # fmt: skip
"""Changes of a body: position, number of bytes removed, and bytes inserted."""


@settings(max_examples=5 * settings().max_examples)
@given(values, st.booleans(), damages)
@example({"a": ":", "b": 1}, True, [(1, 0, b'"b":":",')])
@example({"a": 1}, True, [(1, 0, b'"a" :1,')])
@example({"a": "::"}, True, [(1, 0, b'"a":"",'), (1, 0, b'"a":"",')])
@example({"a": 1, "b": ":"}, True, [(1, 0, b'"a":"\\u003a",')])
@example("", True, [(1, 1, b"\\u003")])
def test_both_readers_are_of_one_mind(
    value: Any, escaped: bool, damage: list[tuple[int, int, bytes]]
) -> None:
    """Long bodies have another reader than short ones; the value, or the refusal, is the same."""
    body = json.dumps(value, ensure_ascii=escaped).encode()
    for at, taken, put in damage:
        body = body[:at] + put + body[at + taken :]
    assume(not body.startswith(codecs.BOM_UTF8))  # refused by name only at the beginning
    assert read(LONG + body) == read(body)


def pairs(count: int, *, twice: bool) -> bytes:
    """An object of `count` keys, with one of them repeated if `twice`."""
    members = [f'"{number}":"{number}:"' for number in range(count)]
    return f"{{{','.join([*members, members[0]] if twice else members)}}}".encode()


@pytest.mark.parametrize("count", [1, 2, 63, 500, 999, 1000, 1001, 5000])
@pytest.mark.parametrize("before", [b"", LONG])
def test_a_key_that_comes_twice_is_found_among_many(count: int, before: bytes) -> None:
    assert len(parse(before + pairs(count, twice=False))) == count
    with pytest.raises(ParseError, match="repeats a key"):
        parse(before + pairs(count, twice=True))


@pytest.mark.parametrize(
    "body",
    [b'{"a":1,"a":2}', b'{"a":":","\\u0061":2}', b'{"x":[{"a":9223372036854775808}]}', b"[" * 65 + b"]" * 65],
)
def test_ambiguous_json_is_refused_in_long_bodies(body: bytes) -> None:
    with pytest.raises(ParseError):
        parse(LONG + body)


@pytest.mark.parametrize("body", [b"[" + b'"a",' * 30_000 + b'"a"]', pairs(30_000, twice=False)])
def test_bodies_with_many_values_are_read_by_the_careful_reader(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checking msgspec's result would take many times as long as reading it."""
    monkeypatch.setattr("msgspec.json.decode", lambda _body: pytest.fail("it was read quickly"))
    assert len(parse(body)) >= 30_000


@pytest.mark.parametrize("padding", [b"=", b"\\u003d", b"\\u003D", b"\\u003c"])
def test_padding_that_a_client_escapes_does_not_cost_the_quick_reader(
    padding: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some encoders write the end of base64 this way."""
    monkeypatch.setattr(
        "mcp_aiohttp.protocol.jsonrpc._read_carefully", lambda _body: pytest.fail("it was read carefully")
    )
    assert parse(b'{"data":"' + b"QUJD" * 1000 + padding + b'"}')["data"].startswith("QUJD")


def test_many_values_are_laborious_wherever_they_stand() -> None:
    """A chunk in base64 has none, and is parsed at once on the loop."""
    assert not is_laborious(b'{"data":"' + b"QUJD" * 1_000_000 + b'"}')
    assert not is_laborious(b"[" * 2000)
    assert not is_laborious(b"[" + b"1," * 20_000 + b"1]")
    assert is_laborious(b"[" + b"1," * 20_001 + b"1]")
    assert is_laborious(LONG + b'{"a":1,' * 20_001)
    assert is_laborious(b"[" * 2001)
    assert is_laborious(LONG + b"[{" * 1001)
