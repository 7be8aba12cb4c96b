"""MCP messages as the load's agents send them, and what counts as a failed call."""

from __future__ import annotations

import json

import pytest

from kb_load.bench.generator import answer_length
from kb_load.messages import HANDSHAKE, MODERN, CallFailed, result_of, structured, tool_call


def test_a_modern_call_carries_its_envelope_and_its_routing_headers() -> None:
    """Headers and body name the same version, method and tool."""
    message = tool_call(MODERN, "kb_search", {"query": "bees"}, key="secret")
    body = json.loads(message.body)
    assert body["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == MODERN
    assert (message.headers["Mcp-Method"], message.headers["Mcp-Name"]) == ("tools/call", "kb_search")
    assert message.headers["MCP-Protocol-Version"] == MODERN
    assert message.headers["Authorization"] == "Bearer secret"


def test_a_handshake_call_has_no_envelope() -> None:
    """Its version stands in the header alone."""
    message = tool_call(HANDSHAKE, "kb_search", {"query": "bees"})
    assert "_meta" not in json.loads(message.body)["params"]
    assert message.headers["MCP-Protocol-Version"] == HANDSHAKE
    assert "Mcp-Method" not in message.headers
    assert "Authorization" not in message.headers


def test_a_plain_answer_and_a_stream_hold_the_same_result() -> None:
    """The last event of a stream is the answer; progress before it is not."""
    plain = b'{"jsonrpc":"2.0","id":1,"result":{"structuredContent":{"total":3}}}'
    stream = (
        b'event: message\ndata: {"method":"notifications/progress"}\n\nevent: message\ndata: %s\n\n' % plain
    )
    assert structured(plain) == structured(stream) == {"total": 3}


@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"isError":true,"content":[{"type":"text","text":"no"}]}}',
        b"[]",
        b"<html>",
        b"",
    ],
)
def test_what_is_no_result_is_a_failed_call(body: bytes) -> None:
    """An error of the tool counts as an error of the protocol does."""
    with pytest.raises(CallFailed):
        result_of(body)


def test_a_result_without_structured_content_is_a_failed_call() -> None:
    """Every tool of this server has one."""
    with pytest.raises(CallFailed, match="structuredContent"):
        structured(b'{"jsonrpc":"2.0","id":1,"result":{"content":[]}}')


def test_the_length_of_an_answer_is_known_from_its_head() -> None:
    """Case does not matter, and half a head tells nothing."""
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nX: y\r\n\r\n"
    assert answer_length(head + b"12") == len(head) + 5
    assert answer_length(head[:20]) is None


def test_an_answer_without_a_length_is_refused() -> None:
    """The small client reads no chunked answers, and says so."""
    with pytest.raises(ValueError, match="Content-Length"):
        answer_length(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
