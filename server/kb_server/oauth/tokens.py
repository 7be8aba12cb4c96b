"""Access tokens of an authorization server: JWTs (RFC 9068), checked against its published keys.

    token ─▶ algorithm, key id ─▶ IssuerKeys ─▶ signature, issuer, audience, times ─▶ scopes ─▶ Grant

Only algorithms with public keys are accepted: a token without a signature, or signed with a shared secret, is
refused before a key is looked for, and a key signs only by the algorithms of its own type. The result of a
check is cached for a minute.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jwt

from kb_contracts.access.keys import reach_of
from kb_contracts.access.reach import Access, Right
from kb_server.access.grants import Grant, TokenScopes
from kb_server.oauth.issuer import ALGORITHMS, IssuerKeys
from kb_server.oauth.oauth_settings import OAuthSettings
from mcp_aiohttp.authentication import ProtectedResource
from mcp_aiohttp.protocol.caller import Identity, TokenRefused, digest

if TYPE_CHECKING:
    from kb_server.services import Services

_ALL: frozenset[str] = frozenset().union(*ALGORITHMS.values())

_TYPES = frozenset({"", "jwt", "at+jwt", "application/at+jwt"})
"""Accepted `typ` of a token's header. ID tokens have `jwt` too; the check of the audience refuses them."""
_REQUIRED = ("exp", "iss", "aud", "sub")
_LEEWAY_SECONDS = 30
_KEPT_SECONDS = 60.0
_KEPT = 2_000
_LONGEST_SUBJECT = 60
_COLLECTION = "collection"
_FIRST: tuple[Right, ...] = ("read", "write")
"""Rights whose scopes a sign-in requests; further scopes are requested when a tool needs them."""


class Scopes:
    """The mapping of scopes to rights, from `KB_OAUTH_SCOPES`."""

    def __init__(self, pairs: Sequence[str]) -> None:
        split = [pair.partition("=") for pair in pairs]
        self._collection = next((scope for name, _, scope in split if name == _COLLECTION), "")
        self.rights: dict[str, Right] = {
            scope: name  # type: ignore[misc] # the setting was checked
            for name, _, scope in split
            if name != _COLLECTION
        }

        self.by_right: dict[Right, str] = {right: scope for scope, right in self.rights.items()}

    @property
    def first(self) -> tuple[str, ...]:
        """Scopes that a client requests first: to read and to write."""
        return tuple(scope for scope, right in self.rights.items() if right in _FIRST)

    def access(self, subject: str, given: Sequence[str]) -> Access:
        """Return the access of a token's scopes; its name identifies subject and permissions."""
        rights = frozenset(right for scope, right in self.rights.items() if scope in given)
        begins = self._collection
        named = [each for each in given if begins and each.startswith(begins)]
        collections = sorted({each.removeprefix(begins) for each in named})
        reach = reach_of(tuple(collections)) if collections else None
        if len(subject) > _LONGEST_SUBJECT or not subject.isprintable():
            subject = hashlib.sha256(subject.encode(errors="surrogatepass")).hexdigest()[:32]
        seen = digest(" ".join((*sorted(rights), "|", *collections)))[:8]
        return Access(f"oauth:{subject}/{seen}", rights, reach)


class TokenVerifier:
    """Checks tokens of `issuer` for any of the `audiences`, which are evaluated for each new token."""

    def __init__(
        self,
        issuer: str,
        audiences: Callable[[], Sequence[str]],
        scopes: Scopes,
        *,
        keys: IssuerKeys | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.issuer = issuer
        self.scopes = scopes
        self._audiences = audiences
        self._keys = keys or IssuerKeys(issuer)
        self._clock = clock
        self._known: dict[str, tuple[Identity, float]] = {}

    def resource(self, base: Callable[[], str]) -> ProtectedResource:
        """Return the metadata by which clients get a token; `base` returns the base URL of this server."""
        return ProtectedResource(
            authorization_servers=(self.issuer,),
            base=base,
            scopes=tuple(self.scopes.rights),
            first_scopes=self.scopes.first,
            name="kb",
        )

    async def identity(self, token: str) -> Identity:
        """Return the identity of the token's sender.

        Raises:
            TokenRefused: the token is not valid here.
            AuthenticatorUnavailable: the issuer's keys cannot be fetched.
        """
        key, now = hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest(), self._clock()
        identity, until = self._known.get(key, (None, 0.0))
        if identity is not None and now < until:
            return identity
        claims = await self._claims(token)
        given = _scopes_of(claims)
        access = self.scopes.access(claims["sub"], given)
        if not access.rights:
            needed = " ".join(self.scopes.first)
            raise TokenRefused(
                f"The token has none of the scopes {', '.join(self.scopes.rights)}.",
                error="insufficient_scope",
                scope=needed,
            )
        scopes = TokenScopes(tuple(given), self.scopes.by_right)
        identity = Identity(access.name, Grant(access, is_one_caller=True, scopes=scopes))
        if len(self._known) >= _KEPT:
            self._known.clear()  # more identities than any real working set
        self._known[key] = identity, min(now + _KEPT_SECONDS, int(claims["exp"]))
        return identity

    async def _claims(self, token: str) -> dict[str, Any]:
        try:
            header = jwt.get_unverified_header(token)
        # bytes that are not ASCII; JSON that is nested too deep
        except (jwt.PyJWTError, UnicodeError, RecursionError):
            raise TokenRefused("The bearer token is neither a key of this server nor a JWT.") from None
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in _ALL:
            raise TokenRefused("The token must be signed with a public key: RS, PS, ES or EdDSA.")
        if str(header.get("typ", "")).lower() not in _TYPES:
            raise TokenRefused("The token's type is not that of an access token.")
        key_id = header.get("kid")
        found = await self._keys.find(key_id if isinstance(key_id, str) else None, algorithm)
        if not found:
            raise TokenRefused("The token is signed with a key that the issuer does not publish.")
        for key in found:
            try:
                return self._decoded(token, key, algorithm)
            except jwt.DecodeError:
                continue  # the signature may belong to the next key
            except jwt.InvalidTokenError as error:  # the signature is valid, the claims are not
                raise _refused(error) from None
            except jwt.PyJWTError:
                continue
        raise TokenRefused("The token's signature is invalid.")

    def _decoded(self, token: str, key: Mapping[str, Any], algorithm: str) -> dict[str, Any]:
        claims = jwt.decode(
            token,
            jwt.PyJWK(dict(key), algorithm),
            algorithms=[algorithm],
            audience=list(self._audiences()),
            issuer=self.issuer,
            leeway=_LEEWAY_SECONDS,
            options={"require": list(_REQUIRED)},
        )
        if not isinstance(claims["sub"], str) or not claims["sub"]:
            raise jwt.MissingRequiredClaimError("sub")
        return claims


def issuer_of(services: Services) -> TokenVerifier:
    """Return the verifier for the settings of a server.

    The audiences are those of the settings, or the URLs of the server.
    """
    settings = services.settings.of(OAuthSettings)

    def audiences() -> list[str]:
        base = services.public_base
        named = settings.oauth_audience or [base, *(f"{base}{path}" for path in services.paths)]
        return [each for name in named for each in (name, f"{name}/")]

    return TokenVerifier(settings.oauth_issuer, audiences, Scopes(settings.oauth_scopes))


def _scopes_of(claims: Mapping[str, Any]) -> list[str]:
    """Return the scopes, in the form of RFC 9068 or as a list in `scp`, as some issuers write them."""
    given = claims.get("scope", claims.get("scp", ""))
    values = given.split() if isinstance(given, str) else given
    return [each for each in values if isinstance(each, str)] if isinstance(values, list) else []


def _refused(error: jwt.InvalidTokenError) -> TokenRefused:
    match error:
        case jwt.ExpiredSignatureError():
            return TokenRefused("The token has expired.", is_guess=False)
        case jwt.ImmatureSignatureError():
            return TokenRefused("The token is not valid yet.", is_guess=False)
        case jwt.InvalidAudienceError():
            return TokenRefused("The token is for another audience.", is_guess=False)
        case jwt.InvalidIssuerError():
            return TokenRefused("The token is from another issuer.")
        case jwt.MissingRequiredClaimError():
            return TokenRefused(f"The token lacks the claim {error.claim}.")
        case _:
            return TokenRefused(f"The token's claims are invalid: {error}.")
