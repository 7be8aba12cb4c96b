"""Keys and tokens of an authorization server, valid and invalid in each way, and a publisher of keys."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

SUBJECT = "alice"
MINUTE = 60


@cache
def rsa_key(name: str) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@cache
def ec_key(name: str) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def public_jwk(name: str, **members: Any) -> dict[str, Any]:
    """The published form of an RSA key; its id is its name."""
    return {**RSAAlgorithm.to_jwk(rsa_key(name).public_key(), as_dict=True), "kid": name, **members}


def private_jwk(name: str) -> dict[str, Any]:
    """The private form of an RSA key, for a server that signs."""
    return {**RSAAlgorithm.to_jwk(rsa_key(name), as_dict=True), "kid": name, "alg": "RS256", "use": "sig"}


def public_ec_jwk(name: str) -> dict[str, Any]:
    return {**ECAlgorithm.to_jwk(ec_key(name).public_key(), as_dict=True), "kid": name}


@dataclass
class Issuer:
    url: str = ""
    audience: str = ""
    key: str = "current"
    published: list[dict[str, Any]] = field(default_factory=lambda: [public_jwk("current", alg="RS256")])
    claimed: str | None = None
    """Issuer named in the metadata, if it differs from `url`."""
    fails: bool = False
    asked: list[str] = field(default_factory=list)
    """Paths of the received requests."""

    def claims(self, **changed: Any) -> dict[str, Any]:
        """The claims of a valid token with some changed; None removes a claim."""
        now = int(time.time())
        good = {
            "iss": self.url,
            "sub": SUBJECT,
            "aud": self.audience,
            "exp": now + 10 * MINUTE,
            "iat": now,
            "scope": "kb:read",
        }
        return {name: value for name, value in {**good, **changed}.items() if value is not None}

    def token(self, *, header: Mapping[str, Any] | None = None, **changed: Any) -> str:
        """A correctly signed token with some claims changed."""
        headers = {"kid": self.key, "typ": "at+jwt", **(header or {})}
        return jwt.encode(self.claims(**changed), rsa_key(self.key), "RS256", headers=headers)

    def app(self) -> web.Application:
        """The application that publishes metadata and keys."""
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        return app

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if self.fails:
            return web.Response(status=500)
        if request.path == "/.well-known/openid-configuration":
            return web.json_response({"issuer": self.claimed or self.url, "jwks_uri": f"{self.url}/jwks"})
        if request.path == "/jwks":
            return web.json_response({"keys": self.published})
        return web.json_response({"error": "not_found"}, status=404)


def _by_hand(header: dict[str, Any], claims: dict[str, Any], sign: Callable[[bytes], bytes]) -> str:
    """A token that no library would make."""
    parts = [json.dumps(part).encode() for part in (header, claims)]
    signed = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    return (signed + b"." + base64.urlsafe_b64encode(sign(signed)).rstrip(b"=")).decode()


def _unsigned(issuer: Issuer, algorithm: str = "none") -> str:
    return _by_hand({"alg": algorithm, "typ": "at+jwt"}, issuer.claims(), lambda _: b"")


def _signed_with_the_public_key(issuer: Issuer) -> str:
    public = rsa_key(issuer.key).public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    header = {"alg": "HS256", "typ": "at+jwt", "kid": issuer.key}
    return _by_hand(header, issuer.claims(), lambda signed: hmac.digest(pem, signed, hashlib.sha256))


def _by_another_key(issuer: Issuer, key: str, key_id: str) -> str:
    return jwt.encode(issuer.claims(), rsa_key(key), "RS256", headers={"kid": key_id, "typ": "at+jwt"})


def _with_its_own_key(issuer: Issuer) -> str:
    header = {"kid": "mine", "typ": "at+jwt", "jwk": public_jwk("mine"), "jku": "http://127.0.0.1:1/jwks"}
    return jwt.encode(issuer.claims(), rsa_key("mine"), "RS256", headers=header)


def _changed(issuer: Issuer) -> str:
    head, _, signature = issuer.token().split(".")
    claims = json.dumps(issuer.claims(scope="kb:read kb:admin")).encode()
    return f"{head}.{base64.urlsafe_b64encode(claims).rstrip(b'=').decode()}.{signature}"


@dataclass(frozen=True)
class Bad:
    """A token that is refused. `status`, `error` (RFC 6750) and `words` are the expected response."""

    what: str
    make: Callable[[Issuer], str]
    status: int
    error: str
    words: str


_SIGNATURE = "The token's signature is invalid."
_UNPUBLISHED = "The token is signed with a key that the issuer does not publish."
_ALGORITHM = "The token must be signed with a public key: RS, PS, ES or EdDSA."
_GARBAGE = "The bearer token is neither a key of this server nor a JWT."


def _bad(what: str, make: Callable[[Issuer], str], words: str, status: int = 401) -> Bad:
    return Bad(what, make, status, "invalid_token" if status == 401 else "insufficient_scope", words)


BAD = (
    _bad("expired", lambda it: it.token(exp=int(time.time()) - MINUTE), "The token has expired."),
    _bad(
        "not valid yet", lambda it: it.token(nbf=int(time.time()) + 5 * MINUTE), "The token is not valid yet."
    ),
    _bad(
        "issued in the future",
        lambda it: it.token(iat=int(time.time()) + 5 * MINUTE),
        "The token is not valid yet.",
    ),
    _bad(
        "of another issuer",
        lambda it: it.token(iss="https://elsewhere.example"),
        "The token is from another issuer.",
    ),
    _bad(
        "for another audience",
        lambda it: it.token(aud="https://elsewhere.example"),
        "The token is for another audience.",
    ),
    _bad("without an audience", lambda it: it.token(aud=None), "The token lacks the claim aud."),
    _bad("without an end", lambda it: it.token(exp=None), "The token lacks the claim exp."),
    _bad("of nobody", lambda it: it.token(sub=None), "The token lacks the claim sub."),
    _bad("unsigned (alg none)", _unsigned, _ALGORITHM),
    _bad("unsigned (alg NONE)", lambda it: _unsigned(it, "NONE"), _ALGORITHM),
    _bad("HS256 with the public key as the secret", _signed_with_the_public_key, _ALGORITHM),
    _bad("signed with a key that was withdrawn", lambda it: _by_another_key(it, "old", "old"), _UNPUBLISHED),
    _bad(
        "signed with another key under the id of a good one",
        lambda it: _by_another_key(it, "old", it.key),
        _SIGNATURE,
    ),
    _bad("signed with a key that it brings along", _with_its_own_key, _UNPUBLISHED),
    _bad("changed after it was signed", _changed, _SIGNATURE),
    _bad(
        "an ID token by its type",
        lambda it: it.token(header={"typ": "id+jwt"}),
        "The token's type is not that of an access token.",
    ),
    _bad("garbage in the form of a token", lambda _: "a.b.c", _GARBAGE),
    _bad("garbage", lambda _: "garbage", "The bearer token is not this server's key (token)."),
    _bad(
        "good, without a scope of kb",
        lambda it: it.token(scope="openid email"),
        "The token has none of the scopes kb:read, kb:write, kb:delete, kb:admin.",
        403,
    ),
)


def bad_table() -> list[str]:
    """The rows of the table in docs/access-reference.md."""
    return [f"| {each.what} | {each.status} | `{each.error}` | {each.words} |" for each in BAD]
