"""What is known of a caller: a correlation id that is safe to pass on, and a digest of the credential."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_server.hosting.calls import correlation_id, new_call
from mcp_aiohttp.protocol.caller import Caller, digest

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("meta", "headers", "expected"),
    [
        ({"correlation_id": "a", "traceparent": TRACEPARENT}, {"X-Request-ID": "d"}, "a"),
        ({"traceparent": TRACEPARENT}, {"X-Correlation-ID": "c"}, TRACE),
        ({}, {"traceparent": TRACEPARENT, "X-Correlation-ID": "c"}, TRACE),
        (None, {"X-Correlation-ID": "c", "X-Request-ID": "d"}, "c"),
        (None, {"X-Request-ID": "d"}, "d"),
        ({"correlation_id": 5, "traceparent": 7}, {"X-Request-ID": "d"}, "d"),
        ({"traceparent": "00-zz-1-1"}, {"X-Request-ID": "d"}, "d"),
        ({"traceparent": f"00-{'0' * 32}-00f067aa0ba902b7-01"}, {"X-Request-ID": "d"}, "d"),
        ({"correlation_id": " \n"}, {"X-Request-ID": "d"}, "d"),
    ],
)
def test_the_callers_own_id_is_kept_in_the_decided_order(
    meta: dict[str, Any] | None, headers: dict[str, str], expected: str
) -> None:
    """`_meta.correlation_id`, then the trace, then the headers; what is unusable is passed over."""
    assert correlation_id(meta, Caller(headers=headers)) == expected


def test_a_caller_without_an_id_gets_a_new_one() -> None:
    assert correlation_id(None, Caller()) != correlation_id(None, Caller())


def test_callers_are_told_apart_by_key_and_address() -> None:
    callers = [Caller("k1", {}, "192.0.2.1"), Caller("k1", {}, "192.0.2.2"), Caller("k2", {}, "192.0.2.1")]
    users = [new_call(None, caller).user for caller in callers]
    assert len(set(users)) == 3
    assert users == [new_call(None, caller).user for caller in callers]
    assert not any("192.0.2" in user or "k1" in user for user in users)


@given(st.text())
def test_an_id_is_safe_to_pass_on_in_a_header(sent: str) -> None:
    """At most 128 printable ASCII characters, whatever was sent."""
    passed = correlation_id({"correlation_id": sent}, Caller())
    assert 1 <= len(passed) <= 128
    assert passed.isascii()
    assert passed.isprintable()
    assert " " not in passed


@given(st.text())
def test_a_digest_tells_tokens_apart_without_holding_them(token: str) -> None:
    assert len(digest(token)) == 16
    assert digest(token) != digest(token + "x")
