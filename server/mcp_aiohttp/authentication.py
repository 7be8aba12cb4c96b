"""Authentication by bearer token, the client's address, and the limit on wrong tokens.

```
Authenticator      maps a token to an identity: one key, or the application's own
WrongTokens        makes an address that sends wrong tokens wait
ProtectedResource  the metadata by which clients find the token issuer (RFC 9728)
TrustedProxies     the proxies whose X-Forwarded-For gives the client's address
```

An address that has sent too many wrong tokens is refused for a while, each time twice as long, with any
token: if the right token alone were answered, the address could continue guessing. Tokens that the address
has already used successfully are let in meanwhile, so that one guesser behind a gateway does not lock out
other clients. Loopback addresses and trusted proxies are exempt, because many clients can share such an
address.
"""

from __future__ import annotations

import hmac
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Protocol, TypeVar
from urllib.parse import urljoin, urlsplit

from aiohttp import hdrs, web

from mcp_aiohttp.protocol.caller import Identity, digest, octets
from mcp_aiohttp.protocol.jsonrpc import TOO_MANY_CALLS, Refusal

K = TypeVar("K")
V = TypeVar("V")


class AuthenticatorUnavailable(Exception):
    """The token cannot be checked now; `retry_after` is in seconds."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after


class Authenticator(Protocol):
    """Maps a bearer token to an identity."""

    @property
    def name(self) -> str:
        """The name of the token in messages to callers."""
        ...

    @property
    def is_needed(self) -> bool:
        """True if callers need a token; if not, tokens are ignored."""
        ...

    async def authenticate(self, token: str) -> Identity | None:
        """Return the identity of the sender of this token, or None if the token is unknown.

        Raises:
            TokenRefused: the token is known but not accepted.
            AuthenticatorUnavailable: the token cannot be checked now.
        """
        ...


class SingleKey:
    """One key for all callers; an empty key admits every caller.

    White space around the key is dropped: keys read from files often have it, and no header could carry it.
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
    """OAuth 2.0 Protected Resource Metadata (RFC 9728), by which clients learn how to get a token."""

    authorization_servers: Sequence[str]
    base: Callable[[], str]
    """Returns the URL by which callers reach this server, without a slash at its end."""
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
        """Return the path of the metadata document for the resource at `path` (RFC 9728, 3.1)."""
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
    """Return a text with the characters replaced that RFC 6750 does not allow between quotes."""
    return "".join(
        sign if sign.isascii() and sign.isprintable() and sign not in '"\\' else " " for sign in value
    )


# --- the address of a client ----------------------------------------------------------------------

_FORWARDED_FOR = "X-Forwarded-For"


class TrustedProxies:
    """The client's address behind trusted proxies.

    A proxy appends the address of its own peer to `X-Forwarded-For`; the elements to the left of it may be
    forged. So the header is read from the right, past the trusted proxies, up to the first address of
    another host.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.networks = [ip_network(name, strict=False) for name in names]

    def trusts(self, address: str | None) -> bool:
        if not self.networks or not address:
            return False
        try:
            parsed = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        return any(parsed in network for network in self.networks)

    def is_bounded(self, address: str) -> bool:
        """True if the number of connections of an address is limited: it is neither a proxy nor loopback."""
        return not is_loopback(address) and not self.trusts(address)

    def client_of(self, request: web.Request) -> str | None:
        """Return the client's address given by a trusted proxy; None if the peer is not one or gives none."""
        if not self.trusts(request.remote):
            return None
        client = None
        for value in reversed(",".join(request.headers.getall(_FORWARDED_FOR, ())).split(",")):
            address = _without_port(value.strip())
            if address is None:
                break
            client = address
            if not self.trusts(address):
                break
        return client


def is_loopback(name: str) -> bool:
    """True if a host name or address is loopback by its form."""
    try:
        return name == "localhost" or ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _without_port(value: str) -> str | None:
    """Return the address in an element of the header, which may have a port; None if it is invalid."""
    if value.startswith("["):
        value = value[1:].partition("]")[0]
    elif value.count(":") == 1:
        value = value.partition(":")[0]
    try:
        return str(ip_address(value))
    except ValueError:
        return None


# --- who guesses ----------------------------------------------------------------------------------

_FREE = 10
"""Number of wrong tokens of an address without a consequence: callers may try an outdated token first."""
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
    """Counts the wrong tokens of each address and makes the address wait; kept in memory, within bounds."""

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
        """Check that an address may have a token looked at.
        Raises Refusal: 429, the address has to wait.
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
        self._guesses[owner] = guesses  # the most recent guesser is last


def _make_room(kept: dict[K, V], most: int) -> None:
    while len(kept) >= most:
        del kept[next(iter(kept))]
