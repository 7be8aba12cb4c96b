"""The bearer key: who may call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from mcp_aiohttp.guard import KeyCheck, TrustedProxies, credential
from mcp_aiohttp.protocol.jsonrpc import Refusal

KEY = "a-secret-key"


def request(*authorization: str, peer: str = "10.0.0.1", **headers: str) -> web.Request:
    """A request with these `Authorization` headers from `peer`."""
    pairs = [("Authorization", value) for value in authorization]
    pairs += [(name.replace("_", "-"), value) for name, value in headers.items()]
    return make_mocked_request("POST", "/mcp", headers=CIMultiDict(pairs)).clone(remote=peer)


def status(check: Callable[[web.Request], None], asked: web.Request) -> int:
    """The status that `check` refuses with; 200 where it lets pass."""
    try:
        check(asked)
    except Refusal as refusal:
        return refusal.status
    return 200


@pytest.mark.parametrize("value", [f"Bearer {KEY}", f"bearer {KEY}", f"BEARER   {KEY} "])
def test_the_key_lets_in(value: str) -> None:
    assert status(KeyCheck(KEY).require, request(value)) == 200


@pytest.mark.parametrize(
    "values",
    [
        (),
        ("",),
        ("Bearer",),
        ("Bearer ",),
        (f"Basic {KEY}",),
        (KEY,),
        (f"Bearer {KEY}x",),
        (f"Bearer {KEY[:-1]}",),
        (f"Bearer {KEY.upper()}",),
        ("Bearer schlüssel",),
        (f"Bearer {KEY}", f"Bearer {KEY}"),
        ("Bearer x", f"Bearer {KEY}"),
    ],
)
def test_anything_else_is_unauthorized(values: tuple[str, ...]) -> None:
    assert status(KeyCheck(KEY).require, request(*values)) == 401


def test_a_key_of_any_letters_can_be_matched() -> None:
    assert status(KeyCheck("schlüssel").require, request("Bearer schlüssel")) == 200


def test_the_refusal_says_what_to_send() -> None:
    with pytest.raises(Refusal) as missing:
        KeyCheck(KEY, name="KB_MCP_API_KEY").require(request())
    with pytest.raises(Refusal) as wrong:
        KeyCheck(KEY, name="KB_MCP_API_KEY").require(request("Bearer guess"))
    assert "Authorization: Bearer" in missing.value.message
    assert "KB_MCP_API_KEY" in wrong.value.message
    assert "guess" not in wrong.value.message
    assert wrong.value.headers["WWW-Authenticate"] == "Bearer"


def test_an_empty_key_lets_everybody_in() -> None:
    """It counts as not set, and so does white space."""
    for key in ("", " \n"):
        assert status(KeyCheck(key).require, request()) == 200
        assert not KeyCheck(key).is_set


def test_white_space_around_the_key_is_dropped() -> None:
    """A key read from a file ends in a line break, which no header could carry."""
    assert status(KeyCheck(f"{KEY}\n").require, request(f"Bearer {KEY}")) == 200


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "::1%lo", "127.9.9.9"])
def test_a_peer_on_this_machine_may_ask_for_metrics_without_the_key(peer: str) -> None:
    check = KeyCheck(KEY).require_unless_local
    assert status(check, request(peer=peer)) == 200
    assert status(check, request(peer=peer, X_Forwarded_For="8.8.8.8")) == 401
    assert status(check, request(peer=peer, Via="1.1 proxy")) == 401
    assert status(check, request(f"Bearer {KEY}", peer=peer, Forwarded="for=8.8.8.8")) == 200


def test_behind_a_trusted_proxy_nobody_is_on_this_machine() -> None:
    check = KeyCheck(KEY, TrustedProxies(["127.0.0.1"])).require_unless_local
    assert status(check, request(peer="127.0.0.1")) == 401
    assert status(check, request(peer="127.0.0.1", X_Forwarded_For="127.0.0.1")) == 401
    assert status(check, request(peer="127.0.0.2")) == 200


def test_two_keys_are_refused_where_none_is_wanted_too() -> None:
    """A proxy in front may have looked at the other one."""
    with pytest.raises(Refusal, match="once"):
        KeyCheck("").require(request("Bearer a", "Bearer b"))


@pytest.mark.parametrize("peer", ["10.0.0.1", "", "unix"])
def test_a_peer_elsewhere_may_not(peer: str) -> None:
    """An address that is none counts as elsewhere."""
    assert status(KeyCheck(KEY).require_unless_local, request(peer=peer)) == 401


def test_callers_are_told_apart_by_a_digest() -> None:
    assert credential(request()) == "anonymous"
    assert credential(request("Bearer a")) != credential(request("Bearer b"))
    assert "a" * 8 not in credential(request("Bearer " + "a" * 8))


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_no_token_breaks_the_comparison(token: str) -> None:
    assert status(KeyCheck(KEY).require, request(f"Bearer {token}")) == (200 if token.strip() == KEY else 401)
