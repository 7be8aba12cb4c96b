"""Whose a request is: the bearer token, who recognizes it, and what slows those who guess.

```
request ─▶ TokenCheck ─┬─ Authenticator     whose a token is: one key, or what the application knows
                       ├─ WrongTokens       an address that sends wrong ones has to wait
                       └─ ProtectedResource where tokens come from, for clients that can get one (RFC 9728)
```

An address that has sent too many wrong tokens is refused for a while, each time twice as long, whatever it
sends: an answer to the right token alone would let it guess on. Tokens that it has used before are let in
meanwhile, so that one guesser behind a gateway does not shut out the others. This machine's own addresses and
trusted proxies are let off: who stands behind an address that many share is not known.
"""

from __future__ import annotations

import hmac
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeVar
from urllib.parse import urljoin, urlsplit

from aiohttp import hdrs, web

from mcp_aiohttp.protocol.caller import ANONYMOUS, NOBODY, Identity, digest, octets
from mcp_aiohttp.protocol.jsonrpc import TOO_MANY_CALLS, UNAUTHORIZED, Refusal
from mcp_aiohttp.proxies import TrustedProxies, is_loopback

K = TypeVar("K")
V = TypeVar("V")


class TokenRefused(Exception):
    """A token that is understood and does not do. `error` is a code of RFC 6750, the message is for people.

    `scope` is what a token would have to have, where it is of the right caller and may too little: 403.
    `is_guess`: who sends it may be trying out others.
    """

    def __init__(
        self, message: str, *, error: str = "invalid_token", scope: str = "", is_guess: bool = True
    ) -> None:
        super().__init__(message)
        self.message = message
        self.error = error
        self.scope = scope
        self.is_guess = is_guess and not scope


class AuthenticatorUnavailable(Exception):
    """Whether a token does cannot be found out now; `retry_after` in seconds."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after


class Authenticator(Protocol):
    """Tells whose a bearer token is."""

    @property
    def name(self) -> str:
        """What messages call the token that callers send."""
        ...

    @property
    def is_needed(self) -> bool:
        """Whether callers need a token; where none does, none is looked at."""
        ...

    async def authenticate(self, token: str) -> Identity | None:
        """Who sends this token; None where nobody knows it.

        Raises:
            TokenRefused: it is known why it does not do.
            AuthenticatorUnavailable: that is not known now.
        """
        ...


class SingleKey:
    """One key for everybody; an empty one lets everybody in.

    White space around the key is dropped: it ends up there from files, and no header could carry it.
    """

    def __init__(self, key: str, name: str = "key") -> None:
        self.name = name
        self._key = key.strip().encode()
        self._identity = Identity(name)

    @property
    def is_needed(self) -> bool:
        return bool(self._key)

    async def authenticate(self, token: str) -> Identity | None:
        return self._identity if hmac.compare_digest(octets(token), self._key) else None


@dataclass(frozen=True, slots=True)
class ProtectedResource:
    """What clients learn of how to get a token: OAuth 2.0 Protected Resource Metadata (RFC 9728)."""

    authorization_servers: Sequence[str]
    base: Callable[[], str]
    """The URL by which callers reach this server, without a slash at its end."""
    scopes: Sequence[str] = ()
    first_scopes: Sequence[str] = ()
    """Scopes that a client without a token requests."""
    name: str = ""

    def metadata(self, path: str) -> dict[str, object]:
        """The document for the resource at `path`; an empty path is the whole server."""
        document: dict[str, object] = {
            "resource": self.base() + path,
            "authorization_servers": list(self.authorization_servers),
            "bearer_methods_supported": ["header"],
        }
        if self.scopes:
            document["scopes_supported"] = list(self.scopes)
        if self.name:
            document["resource_name"] = self.name
        return document

    def metadata_path(self, path: str) -> str:
        """Where the document for the resource at `path` is, from the root of the host (RFC 9728, 3.1)."""
        return f"{METADATA}{urlsplit(self.base()).path}{path}"

    def challenge(self, path: str, error: str = "", description: str = "", scope: str = "") -> str:
        """The value of `WWW-Authenticate` at `path`."""
        values = {
            "error": error,
            "error_description": description,
            "scope": scope or " ".join(self.first_scopes),
            "resource_metadata": urljoin(self.base(), self.metadata_path(path)),
        }
        return "Bearer " + ", ".join(f'{key}="{_quoted(value)}"' for key, value in values.items() if value)


METADATA = "/.well-known/oauth-protected-resource"


def _quoted(value: str) -> str:
    """A text as RFC 6750 lets it stand between quotes."""
    return "".join(
        sign if sign.isascii() and sign.isprintable() and sign not in '"\\' else " " for sign in value
    )


# --- who guesses ----------------------------------------------------------------------------------

_FREE = 10
"""Wrong tokens of an address that have no consequence: somebody tries an old one first."""
_LONGEST_SECONDS = 900.0
_FORGOTTEN_SECONDS = 3_600.0
_ADDRESSES = 10_000
_TOKENS = 20_000


@dataclass(slots=True)
class _Guesses:
    count: int = 0
    last: float = 0.0
    until: float = 0.0


class WrongTokens:
    """Counts the wrong tokens of each address, and has it wait; kept in memory, within bounds."""

    def __init__(
        self,
        proxies: TrustedProxies,
        owner_of: Callable[[str], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`owner_of` gives the name under which an address is counted, such as its network."""
        self._proxies = proxies
        self._clock = clock
        self._guesses: dict[str, _Guesses] = {}
        self._accepted: dict[tuple[str, str], None] = {}
        self._owner_of = lru_cache(maxsize=4096)(
            lambda address: owner_of(address) if address and proxies.is_bounded(address) else None
        )

    def check(self, address: str, token: str) -> None:
        """Let a token of an address be looked at.

        Raises:
            Refusal: 429, the address has to wait.
        """
        owner = self._owner_of(address)
        guesses = self._guesses.get(owner) if owner is not None else None
        if guesses is None or owner is None or (left := guesses.until - self._clock()) <= 0:
            return
        if (owner, digest(token)) in self._accepted:
            return
        wait = math.ceil(left)
        raise Refusal(
            429,
            TOO_MANY_CALLS,
            "too_many_wrong_tokens",
            f"Too many wrong tokens came from your address. Try again in {wait} s.",
            headers={hdrs.RETRY_AFTER: str(wait)},
            details={"retry_after": wait},
        )

    def accept(self, address: str, token: str) -> None:
        """Note that this token of this address was right."""
        owner = self._owner_of(address)
        if owner is None or (seen := (owner, digest(token))) in self._accepted:
            return
        _make_room(self._accepted, _TOKENS)
        self._accepted[seen] = None

    def count(self, address: str) -> None:
        """Note that an address sent a wrong one."""
        owner = self._owner_of(address)
        if owner is None:
            return
        now = self._clock()
        guesses = self._guesses.pop(owner, None)
        if guesses is None or now - guesses.last > _FORGOTTEN_SECONDS:
            guesses = _Guesses()
        _make_room(self._guesses, _ADDRESSES)
        guesses.count += 1
        guesses.last = now
        if guesses.count > _FREE:
            guesses.until = now + min(_LONGEST_SECONDS, 2.0 ** min(guesses.count - _FREE - 1, 30))
        self._guesses[owner] = guesses  # the one that guessed last stands last


def _make_room(kept: dict[K, V], most: int) -> None:
    while len(kept) >= most:
        del kept[next(iter(kept))]


# --- the token of a request -----------------------------------------------------------------------

_FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")


class TokenCheck:
    """Finds out who sends a request."""

    def __init__(
        self,
        authenticator: Authenticator,
        proxies: TrustedProxies | None = None,
        wrong: WrongTokens | None = None,
        resource: ProtectedResource | None = None,
    ) -> None:
        self.authenticator = authenticator
        self.resource = resource
        self._proxies = proxies or TrustedProxies()
        self.wrong = wrong or WrongTokens(self._proxies)

    @property
    def header(self) -> str:
        """What a caller sends."""
        return f"Authorization: Bearer <{self.authenticator.name}>"

    async def require(self, request: web.Request) -> Identity:
        """Who sends the request; nobody where no token is needed.

        Raises:
            Refusal: 401, a token is needed and there is none, a wrong one, or two; 403, it may too little;
                429, too many wrong ones came from this address; 503, nobody can say now.
        """
        values = request.headers.getall(hdrs.AUTHORIZATION, ())
        if len(values) > 1:
            raise self._unauthorized(request, "Send the header `Authorization` once.")
        if not self.authenticator.is_needed:
            return NOBODY
        token = _token(values[0]) if values else None
        if token is None:
            raise self._unauthorized(request, f"A key is needed: send the header `{self.header}`.")
        address = self._proxies.client_of(request) or request.remote or ""
        self.wrong.check(address, token)
        try:
            identity = await self.authenticator.authenticate(token)
        except TokenRefused as refused:
            if refused.is_guess:
                self.wrong.count(address)
            raise self._refusal(request, refused) from None
        except AuthenticatorUnavailable as unavailable:
            wait = math.ceil(unavailable.retry_after)
            raise Refusal(
                503,
                UNAUTHORIZED,
                "authenticator_unavailable",
                unavailable.message,
                headers={hdrs.RETRY_AFTER: str(wait)},
                details={"retry_after": wait},
            ) from None
        if identity is None:
            self.wrong.count(address)
            words = f"The bearer token is not this server's key ({self.authenticator.name})."
            raise self._refusal(request, TokenRefused(words))
        self.wrong.accept(address, token)
        return identity

    async def require_unless_local(self, request: web.Request) -> Identity:
        """As `require`, but a peer on this machine passes, as nobody; behind a proxy none counts as one.

        Raises:
            Refusal: as `require`.
        """
        proxied = any(header in request.headers for header in _FORWARDED)
        if proxied or self._proxies.trusts(request.remote) or not is_loopback(request.remote or ""):
            return await self.require(request)
        return NOBODY

    def _unauthorized(self, request: web.Request, message: str) -> Refusal:
        return refusal(401, message, self.resource.challenge(request.path) if self.resource else "Bearer")

    def _refusal(self, request: web.Request, refused: TokenRefused) -> Refusal:
        challenge = "Bearer"
        if self.resource is not None:
            challenge = self.resource.challenge(request.path, refused.error, refused.message, refused.scope)
        return refusal(403 if refused.scope else 401, refused.message, challenge)


def refusal(status: int, message: str, challenge: str) -> Refusal:
    """The refusal of a request for its token: 401 `unauthorized`, or 403 `insufficient_scope`."""
    error_type = "unauthorized" if status == 401 else "insufficient_scope"
    return Refusal(status, UNAUTHORIZED, error_type, message, headers={hdrs.WWW_AUTHENTICATE: challenge})


def bearer(request: web.Request) -> str | None:
    """The token of `Authorization: Bearer`, or None; two such headers carry none, for they disagree."""
    values = request.headers.getall(hdrs.AUTHORIZATION, ())
    return _token(values[0]) if len(values) == 1 else None


@lru_cache(maxsize=256)
def _token(value: str) -> str | None:
    scheme, _, token = value.strip().partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def credential(request: web.Request) -> str:
    """A short digest of the caller's token, or `anonymous`."""
    token = bearer(request)
    return digest(token) if token is not None else ANONYMOUS
