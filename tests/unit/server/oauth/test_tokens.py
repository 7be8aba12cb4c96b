"""Tokens of an issuer: requests for its keys, refused tokens, and the rights of scopes."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import jwt
import pytest
from aiohttp.test_utils import TestServer

from kb_config.settings import SettingsError
from kb_contracts.access.reach import RIGHTS, Access, Reach
from kb_server.access.grants import Grant
from kb_server.oauth.issuer import IssuerKeys
from kb_server.oauth.oauth_settings import OAUTH_SCOPES, OAuthSettings
from kb_server.oauth.tokens import Scopes, TokenVerifier
from kb_server.settings import ServerSettings
from mcp_aiohttp.authentication import AuthenticatorUnavailable
from mcp_aiohttp.protocol.caller import TokenRefused
from tests.support.tokens import BAD, Bad, Issuer, ec_key, public_ec_jwk, public_jwk, rsa_key

AUDIENCE = "https://kb.example/mcp"
SCOPES = Scopes(OAUTH_SCOPES)


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    issuer = Issuer(audience=AUDIENCE)
    async with TestServer(issuer.app()) as server:
        issuer.url = str(server.make_url("")).rstrip("/")
        yield issuer


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def verifier(issuer: Issuer, clock: Clock) -> TokenVerifier:
    keys = IssuerKeys(issuer.url, clock)
    return TokenVerifier(issuer.url, lambda: [AUDIENCE], SCOPES, keys=keys)


async def access(verifier: TokenVerifier, token: str) -> Access:
    grant = (await verifier.identity(token)).payload
    assert isinstance(grant, Grant)
    assert grant.is_one_caller
    return grant.access


async def test_a_good_token_is_taken(verifier: TokenVerifier, issuer: Issuer) -> None:
    found = await access(verifier, issuer.token())
    assert found.name.startswith("oauth:alice/")
    assert (found.rights, found.reach) == ({"read"}, None)


@pytest.mark.parametrize("bad", [each for each in BAD if each.what != "garbage"], ids=lambda bad: bad.what)
async def test_a_bad_one_is_not(verifier: TokenVerifier, issuer: Issuer, bad: Bad) -> None:
    with pytest.raises(TokenRefused) as refused:
        await verifier.identity(bad.make(issuer))
    assert (refused.value.message, refused.value.error) == (bad.words, bad.error)
    assert bool(refused.value.scope) == (bad.status == 403)


@pytest.mark.parametrize(
    "changed",
    [
        {"aud": [AUDIENCE, "https://other.example"]},
        {"exp": -10},  # seconds from now, within the tolerance for clocks
        {"scope": None, "scp": ["kb:read"]},
        {"scope": "openid kb:read"},
    ],
)
async def test_tokens_of_other_issuers_forms_are_accepted(
    verifier: TokenVerifier, issuer: Issuer, changed: Any
) -> None:
    if "exp" in changed:
        changed = {"exp": int(time.time()) + changed["exp"]}
    assert (await access(verifier, issuer.token(**changed))).rights == {"read"}


@pytest.mark.parametrize(
    "changed",
    [{"scope": 3}, {"scope": None, "scp": {"kb:read": 1}}, {"scope": ["kb:read", 3]}, {"sub": 7}, {"sub": ""},
     {"aud": 3}, {"aud": [3]}, {"iss": [3]}, {"exp": "soon"}, {"exp": "9999999999"}, {"nbf": "x"}],
)  # fmt: skip
async def test_claims_of_other_types_break_nothing(
    verifier: TokenVerifier, issuer: Issuer, changed: Any
) -> None:
    head, _, _ = issuer.token().split(".")
    claims = base64.urlsafe_b64encode(json.dumps(issuer.claims(**changed)).encode()).rstrip(b"=")
    signed = f"{head}.{claims.decode()}"
    signature = jwt.get_algorithm_by_name("RS256").sign(signed.encode(), rsa_key(issuer.key))
    token = f"{signed}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"
    if changed in ({"scope": ["kb:read", 3]}, {"exp": "9999999999"}):
        assert (await access(verifier, token)).rights == {"read"}
        return
    with pytest.raises(TokenRefused):
        await verifier.identity(token)


@pytest.mark.parametrize(
    "header",
    ['{"alg": ["RS256"]}', '{"alg": {"RS256": 1}}', '{"alg": null}', "[]", '"RS256"',
     '{"alg": "RS256", "x": ' + "[" * 9_000 + "]" * 9_000 + "}", '{"alg": "RS256", "typ": ["jwt"]}',
     '{"alg": "RS256", "kid": ["current"]}', '{"alg": "RS256", "crit": ["x"]}', "\xff"],
)  # fmt: skip
async def test_a_header_of_any_form_is_a_wrong_token(verifier: TokenVerifier, header: str) -> None:
    head = base64.urlsafe_b64encode(header.encode("latin-1")).rstrip(b"=").decode()
    with pytest.raises(TokenRefused) as refused:
        await verifier.identity(f"{head}.e30.c2lnbmF0dXJl")
    assert refused.value.is_guess


async def test_a_token_of_bytes_beyond_ascii_is_a_wrong_one(verifier: TokenVerifier) -> None:
    with pytest.raises(TokenRefused) as refused:
        await verifier.identity(b"\xe4.b\xff.c".decode("utf-8", "surrogateescape"))
    assert refused.value.is_guess


async def test_keys_are_asked_for_once(verifier: TokenVerifier, issuer: Issuer) -> None:
    for number in range(20):
        await verifier.identity(issuer.token(sub=f"user{number}"))
    assert issuer.asked.count("/jwks") == 1


async def test_a_new_key_is_asked_for_and_made_up_ones_at_the_most_every_ten_seconds(
    verifier: TokenVerifier, issuer: Issuer, clock: Clock
) -> None:
    await verifier.identity(issuer.token())
    clock.now += 11
    issuer.key, issuer.published = "next", [public_jwk("current"), public_jwk("next")]
    await verifier.identity(issuer.token())
    assert issuer.asked.count("/jwks") == 2
    for number in range(50):
        with pytest.raises(TokenRefused):
            await verifier.identity(issuer.token(header={"kid": f"made-up-{number}"}))
    assert issuer.asked.count("/jwks") == 2
    clock.now += 11
    with pytest.raises(TokenRefused):
        await verifier.identity(issuer.token(header={"kid": "made-up"}))
    assert issuer.asked.count("/jwks") == 3


async def test_a_withdrawn_key_signs_nothing_after_ten_minutes(
    verifier: TokenVerifier, issuer: Issuer, clock: Clock
) -> None:
    await verifier.identity(issuer.token())
    issuer.published = [public_jwk("next")]
    clock.now += 601
    with pytest.raises(TokenRefused, match="does not publish"):
        await verifier.identity(issuer.token(sub="bob"))


async def test_the_result_of_a_token_is_cached_for_a_minute(issuer: Issuer, clock: Clock) -> None:
    clock.now = time.time()
    verifier = TokenVerifier(
        issuer.url, lambda: [AUDIENCE], SCOPES, keys=IssuerKeys(issuer.url, clock), clock=clock
    )
    token = issuer.token()
    assert await verifier.identity(token) is await verifier.identity(token)
    issuer.published = [public_jwk("next")]
    clock.now += 59
    await verifier.identity(token)
    clock.now += 600
    with pytest.raises(TokenRefused):
        await verifier.identity(token)


async def test_while_the_issuer_is_out_of_reach_its_keys_count_on_for_a_day(
    verifier: TokenVerifier, issuer: Issuer, clock: Clock
) -> None:
    await verifier.identity(issuer.token())
    issuer.fails = True
    clock.now += 86_000
    await verifier.identity(issuer.token(sub="bob"))
    clock.now += 500
    with pytest.raises(AuthenticatorUnavailable):
        await verifier.identity(issuer.token(sub="carol"))
    asked = len(issuer.asked)
    with pytest.raises(AuthenticatorUnavailable):
        await verifier.identity(issuer.token(sub="carol"))
    assert len(issuer.asked) == asked, "it is left alone for a while"
    issuer.fails = False
    clock.now += 11
    await verifier.identity(issuer.token(sub="carol"))


async def test_metadata_of_another_issuer_is_not_taken(verifier: TokenVerifier, issuer: Issuer) -> None:
    issuer.claimed = "https://elsewhere.example"
    with pytest.raises(AuthenticatorUnavailable):
        await verifier.identity(issuer.token())


async def test_a_token_without_a_key_id_is_held_against_all_that_suit(
    verifier: TokenVerifier, issuer: Issuer
) -> None:
    issuer.published = [public_jwk("old"), public_ec_jwk("curve"), public_jwk("current"), public_jwk("next")]
    token = jwt.encode(issuer.claims(), rsa_key("current"), "RS256")
    assert (await access(verifier, token)).rights == {"read"}
    with pytest.raises(TokenRefused):
        await verifier.identity(jwt.encode(issuer.claims(), rsa_key("elsewhere"), "RS256"))


async def test_a_token_without_a_key_id_is_refused_for_what_it_lacks(
    verifier: TokenVerifier, issuer: Issuer
) -> None:
    """If the first of two keys verifies the signature, the second is not tried; it would count as a guess."""
    issuer.published = [public_jwk("current"), public_jwk("next")]
    expired = issuer.claims(exp=int(time.time()) - 3_600)
    for key in ("current", "next"):
        with pytest.raises(TokenRefused, match="has expired") as refused:
            await verifier.identity(jwt.encode(expired, rsa_key(key), "RS256"))
        assert not refused.value.is_guess


async def test_a_key_signs_by_its_own_algorithms_alone(verifier: TokenVerifier, issuer: Issuer) -> None:
    issuer.published = [public_ec_jwk("curve"), public_jwk("ps", alg="PS256"), public_jwk("enc", use="enc")]
    es256 = jwt.encode(issuer.claims(), ec_key("curve"), "ES256", headers={"kid": "curve"})
    assert (await access(verifier, es256)).rights == {"read"}
    ps256 = jwt.encode(issuer.claims(), rsa_key("ps"), "PS256", headers={"kid": "ps"})
    assert (await access(verifier, ps256)).rights == {"read"}
    for key, algorithm in (("ps", "RS256"), ("enc", "RS256")):
        with pytest.raises(TokenRefused):
            await verifier.identity(
                jwt.encode(issuer.claims(), rsa_key(key), algorithm, headers={"kid": key})
            )


def test_scopes_are_rights_and_collections() -> None:
    found = SCOPES.access(
        "bob", ["kb:read", "kb:write", "kb:collection:a", "kb:collection:team-*", "openid", "kb:fly"]
    )
    assert found.rights == {"read", "write"}
    assert found.reach == Reach(frozenset({"collection:a"}), frozenset({"collection:team-"}))
    assert SCOPES.access("bob", ["kb:read", "kb:write", "kb:delete", "kb:admin"]).rights == RIGHTS
    assert SCOPES.access("bob", ["kb:read"]).name != found.name, "two that see different things"
    assert SCOPES.access("bob", ["kb:read"]).name == SCOPES.access("bob", ["openid", "kb:read"]).name


def test_a_subject_of_any_length_is_a_name() -> None:
    long, odd = SCOPES.access("x" * 10_000, ["kb:read"]).name, SCOPES.access("a\nb", ["kb:read"]).name
    assert len(long) < 100
    assert odd.isprintable()


def test_scopes_may_be_called_otherwise() -> None:
    scopes = Scopes(["read=api://kb/Read", "administer=api://kb/All"])
    assert scopes.access("bob", ["api://kb/All", "kb:read", "kb:collection:a"]) == Access(
        scopes.access("bob", ["api://kb/All"]).name, frozenset({"administer"})
    )


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("KB_OAUTH_ISSUER", "http://issuer.example"),
        ("KB_OAUTH_ISSUER", "issuer.example"),
        ("KB_OAUTH_ISSUER", "https://issuer.example/?x=1"),
        ("KB_OAUTH_SCOPES", "fly=kb:fly"),
        ("KB_OAUTH_SCOPES", "read"),
        ("KB_OAUTH_SCOPES", "read=ü"),
    ],
)
def test_settings_are_checked(variable: str, value: str) -> None:
    with pytest.raises(SettingsError, match=variable):
        ServerSettings.read({variable: value})


def test_an_issuer_on_this_machine_needs_no_tls() -> None:
    settings = ServerSettings.read({"KB_OAUTH_ISSUER": "http://127.0.0.1:3000"})
    assert settings.of(OAuthSettings).oauth_issuer
