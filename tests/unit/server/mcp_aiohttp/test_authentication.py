"""Authentication: the bearer token, delays after wrong guesses, and the metadata of the issuer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from mcp_aiohttp.authentication import (
    AuthenticatorUnavailable,
    ProtectedResource,
    SingleKey,
    TrustedProxies,
    WrongTokens,
)
from mcp_aiohttp.guard import TokenCheck, credential
from mcp_aiohttp.protocol.caller import Identity, TokenRefused
from mcp_aiohttp.protocol.jsonrpc import Refusal

KEY = "a-secret-key"


def request(*authorization: str, peer: str = "10.0.0.1", **headers: str) -> web.Request:
    pairs = [("Authorization", value) for value in authorization]
    pairs += [(name.replace("_", "-"), value) for name, value in headers.items()]
    return make_mocked_request("POST", "/mcp", headers=CIMultiDict(pairs)).clone(remote=peer)


def check(key: str, proxies: TrustedProxies | None = None, *, name: str = "key") -> TokenCheck:
    return TokenCheck(SingleKey(key, name), proxies)


async def status(check: Callable[[web.Request], Awaitable[object]], asked: web.Request) -> int:
    try:
        await check(asked)
    except Refusal as refusal:
        return refusal.status
    return 200


@pytest.mark.parametrize("value", [f"Bearer {KEY}", f"bearer {KEY}", f"BEARER   {KEY} "])
async def test_the_key_lets_in(value: str) -> None:
    assert await status(check(KEY).require, request(value)) == 200


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
async def test_anything_else_is_unauthorized(values: tuple[str, ...]) -> None:
    assert await status(check(KEY).require, request(*values)) == 401


async def test_a_key_of_any_letters_can_be_matched() -> None:
    assert await status(check("schlüssel").require, request("Bearer schlüssel")) == 200


async def test_the_refusal_says_what_to_send() -> None:
    with pytest.raises(Refusal) as missing:
        await check(KEY, name="KB_MCP_API_KEY").require(request())
    with pytest.raises(Refusal) as wrong:
        await check(KEY, name="KB_MCP_API_KEY").require(request("Bearer guess"))
    assert "Authorization: Bearer" in missing.value.message
    assert "KB_MCP_API_KEY" in wrong.value.message
    assert "guess" not in wrong.value.message
    assert wrong.value.headers["WWW-Authenticate"] == "Bearer"


async def test_an_empty_key_lets_everybody_in() -> None:
    """It counts as unset, and so does white space."""
    for key in ("", " \n"):
        assert await status(check(key).require, request()) == 200
        assert not check(key).authenticator.is_needed


async def test_white_space_around_the_key_is_dropped() -> None:
    """A key read from a file ends in a line break, which no header could carry."""
    assert await status(check(f"{KEY}\n").require, request(f"Bearer {KEY}")) == 200


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "::1%lo", "127.9.9.9"])
async def test_a_peer_on_this_machine_may_ask_for_metrics_without_the_key(peer: str) -> None:
    wanted = check(KEY).require_unless_local
    assert await status(wanted, request(peer=peer)) == 200
    assert await status(wanted, request(peer=peer, X_Forwarded_For="8.8.8.8")) == 401
    assert await status(wanted, request(peer=peer, Via="1.1 proxy")) == 401
    assert await status(wanted, request(f"Bearer {KEY}", peer=peer, Forwarded="for=8.8.8.8")) == 200


async def test_behind_a_trusted_proxy_nobody_is_on_this_machine() -> None:
    wanted = check(KEY, TrustedProxies(["127.0.0.1"])).require_unless_local
    assert await status(wanted, request(peer="127.0.0.1")) == 401
    assert await status(wanted, request(peer="127.0.0.1", X_Forwarded_For="127.0.0.1")) == 401
    assert await status(wanted, request(peer="127.0.0.2")) == 200


async def test_two_keys_are_refused_where_none_is_wanted_too() -> None:
    """A proxy in front may have checked the other one."""
    with pytest.raises(Refusal, match="once"):
        await check("").require(request("Bearer a", "Bearer b"))


@pytest.mark.parametrize("peer", ["10.0.0.1", "", "unix"])
async def test_a_peer_elsewhere_may_not(peer: str) -> None:
    """An invalid address counts as remote."""
    assert await status(check(KEY).require_unless_local, request(peer=peer)) == 401


def test_callers_are_told_apart_by_a_digest() -> None:
    assert credential(request()) == "anonymous"
    assert credential(request("Bearer a")) != credential(request("Bearer b"))
    assert "a" * 8 not in credential(request("Bearer " + "a" * 8))


@given(st.text(st.characters(codec="utf-8"), max_size=40))
async def test_no_token_breaks_the_comparison(token: str) -> None:
    assert await status(check(KEY).require, request(f"Bearer {token}")) == (
        200 if token.strip() == KEY else 401
    )


# --- wrong guesses -------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def slowing(clock: Clock, *proxies: str) -> TokenCheck:
    trusted = TrustedProxies(proxies)
    wrong = WrongTokens(trusted, lambda address: address.rpartition(".")[0], clock)
    return TokenCheck(SingleKey(KEY), trusted, wrong)


async def guess(tokens: TokenCheck, times: int, peer: str = "10.0.0.1", **headers: str) -> list[int]:
    guesses = (request(f"Bearer guess{number}", peer=peer, **headers) for number in range(times))
    return [await status(tokens.require, each) for each in guesses]


async def test_an_address_that_guesses_waits_longer_and_longer() -> None:
    clock = Clock()
    tokens = slowing(clock)
    assert await guess(tokens, 12) == [401] * 11 + [429]
    for seconds in (1, 2, 4, 8):
        clock.now += seconds - 0.5
        with pytest.raises(Refusal) as refused:
            await tokens.require(request(f"Bearer {KEY}"))
        assert (refused.value.status, refused.value.headers["Retry-After"]) == (429, "1")
        clock.now += 0.5
        assert await guess(tokens, 2) == [401, 429]
    for _ in range(20):
        clock.now += 1_000
        await guess(tokens, 1)
    clock.now += 899
    assert await status(tokens.require, request(f"Bearer {KEY}")) == 429
    clock.now += 1
    assert await status(tokens.require, request(f"Bearer {KEY}")) == 200


async def test_known_tokens_are_accepted_while_another_host_of_the_network_guesses() -> None:
    tokens = slowing(Clock())
    assert await status(tokens.require, request(f"Bearer {KEY}", peer="10.0.0.7")) == 200
    await guess(tokens, 12, peer="10.0.0.9")
    assert await status(tokens.require, request("Bearer other", peer="10.0.0.7")) == 429
    assert await status(tokens.require, request(f"Bearer {KEY}", peer="10.0.0.7")) == 200
    assert await status(tokens.require, request(f"Bearer {KEY}", peer="10.0.1.7")) == 200, "another network"


async def test_a_request_without_a_token_is_no_guess() -> None:
    tokens = slowing(Clock())
    for _ in range(30):
        assert await status(tokens.require, request()) == 401
    assert await status(tokens.require, request(f"Bearer {KEY}")) == 200


async def test_guesses_are_forgotten() -> None:
    clock = Clock()
    tokens = slowing(clock)
    await guess(tokens, 10)
    clock.now += 3_601
    assert await guess(tokens, 11) == [401] * 11


async def test_this_machine_and_trusted_proxies_are_let_off_and_the_client_behind_one_is_not() -> None:
    tokens = slowing(Clock(), "10.9.0.0/16")
    assert set(await guess(tokens, 30, peer="127.0.0.1")) == {401}
    assert set(await guess(tokens, 30, peer="10.9.0.1")) == {401}
    assert (await guess(tokens, 12, peer="10.9.0.1", X_Forwarded_For="8.8.8.8"))[-1] == 429
    assert await guess(tokens, 1, peer="10.9.0.1", X_Forwarded_For="8.8.4.4") == [401]


async def test_an_address_that_the_caller_makes_up_is_not_believed() -> None:
    tokens = slowing(Clock())
    found = [await guess(tokens, 1, X_Forwarded_For=f"9.9.{number}.9") for number in range(12)]
    assert found[-1] == [429]


async def test_memory_has_a_bound() -> None:
    wrong = WrongTokens(TrustedProxies())
    for number in range(10_001):
        for _ in range(12 if number == 0 else 1):
            wrong.count(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    wrong.check("10.0.0.0", KEY)  # the oldest entry was dropped


# --- the issuer of tokens ------------------------------------------------------------------------


class _Tokens:
    name = "token"
    is_needed = True

    async def authenticate(self, token: str) -> Identity | None:
        match token:
            case "expired":
                raise TokenRefused('The token has "expired".', is_guess=False)
            case "narrow":
                raise TokenRefused("Too little.", error="insufficient_scope", scope="kb:write")
            case "later":
                raise AuthenticatorUnavailable("Not now.", retry_after=2.5)
        return Identity("me", 7) if token == "good" else None


def protected() -> TokenCheck:
    resource = ProtectedResource(["https://issuer"], lambda: "https://kb", ["kb:read"], ["kb:read"], "kb")
    return TokenCheck(_Tokens(), resource=resource)


@pytest.mark.parametrize(
    ("token", "expected", "challenge"),
    [
        (None, 401, 'Bearer scope="kb:read", '),
        (
            "expired",
            401,
            'Bearer error="invalid_token", error_description="The token has  expired .", scope="kb:read", ',
        ),
        (
            "unknown",
            401,
            'Bearer error="invalid_token", error_description="The bearer token is not this server\'s key '
            '(token).", scope="kb:read", ',
        ),
        (
            "narrow",
            403,
            'Bearer error="insufficient_scope", error_description="Too little.", scope="kb:write", ',
        ),
    ],
)
async def test_a_refusal_says_where_tokens_come_from(
    token: str | None, expected: int, challenge: str
) -> None:
    asked = request() if token is None else request(f"Bearer {token}")
    with pytest.raises(Refusal) as refused:
        await protected().require(asked)
    assert refused.value.status == expected
    metadata = 'resource_metadata="https://kb/.well-known/oauth-protected-resource/mcp"'
    assert refused.value.headers["WWW-Authenticate"] == challenge + metadata


def test_metadata_of_a_server_under_a_path_are_at_the_root_of_its_host() -> None:
    """RFC 9728, section 3.1."""
    resource = ProtectedResource(["https://issuer"], lambda: "https://kb.example/base")
    well_known = "/.well-known/oauth-protected-resource/base/mcp"
    assert resource.metadata_path("/mcp") == well_known
    assert f'resource_metadata="https://kb.example{well_known}"' in resource.challenge("/mcp")
    assert resource.metadata("/mcp")["resource"] == "https://kb.example/base/mcp"


async def test_the_identity_of_the_authenticator_is_returned() -> None:
    assert await protected().require(request("Bearer good")) == Identity("me", 7)


async def test_an_authenticator_out_of_reach_says_when_to_come_back() -> None:
    with pytest.raises(Refusal) as refused:
        await protected().require(request("Bearer later"))
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (503, "3")
    assert "WWW-Authenticate" not in refused.value.headers, "a client would throw its token away"


async def test_a_token_that_has_expired_is_no_guess() -> None:
    tokens = protected()
    for _ in range(30):
        for token in ("expired", "narrow", "later"):
            assert await status(tokens.require, request(f"Bearer {token}")) != 429
    assert await status(tokens.require, request("Bearer good")) == 200
