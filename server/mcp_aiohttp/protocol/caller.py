"""The sender of a message, as far as the transport knows it."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

ANONYMOUS = "anonymous"


class Identity(msgspec.Struct, frozen=True):
    """The authenticated identity of a caller.

    `payload` belongs to the application; this package does not read it.
    """

    name: str = ANONYMOUS
    payload: Any = None


NOBODY = Identity()
"""The identity of callers that need no token."""


class TokenRefused(Exception):
    """A token that is recognized but not accepted. `error` is a code of RFC 6750, the message is for people.

    `scope` is the scope that is missing, if the caller is right but lacks permission: status 403. `is_guess`
    means that the sender may be trying tokens at random; such a token counts as a wrong one.
    """

    def __init__(
        self, message: str, *, error: str = "invalid_token", scope: str = "", is_guess: bool = True
    ) -> None:
        super().__init__(message)
        self.message = message
        self.error = error
        self.scope = scope
        self.is_guess = is_guess and not scope


class Connected:
    """A connection that carries messages both ways, for state that lasts as long as the connection."""

    def __init__(self) -> None:
        self.is_open = True
        """False for a call that begins after the end of its connection, before it is cancelled."""
        self._endings: list[Callable[[], None]] = []

    def on_end(self, ending: Callable[[], None]) -> None:
        """Have `ending`, which raises nothing, called when the connection, which is open, has ended."""
        self._endings.append(ending)

    def end(self) -> None:
        """Call the callbacks: the connection has ended."""
        self.is_open = False
        for ending in self._endings:
            ending()


class Caller(msgspec.Struct, frozen=True):
    """The context of a message. On stdio there are no headers, and the caller is anonymous.

    Handlers of a hosted server find it in `context.request`.
    """

    credential: str = ANONYMOUS
    """A short digest of the bearer token that tells callers apart; never the token."""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """aiohttp's mappings ignore case."""
    address: str = ""
    identity: Identity = NOBODY
    connection: Connected | None = None
    """None over HTTP, where every request is independent."""
    recheck: Callable[[], Awaitable[Caller]] | None = None
    """Authenticates the caller again, for work that outlasts its request; None if nothing does, and on stdio.

    Raises `Refusal` if the token was revoked or has expired.
    """

    async def current(self) -> Caller:
        """Return the caller, authenticated again if possible. Raises as `recheck`."""
        return self if self.recheck is None else await self.recheck()


@lru_cache(maxsize=256)
def digest(token: str) -> str:
    """Return 16 hexadecimal characters of the token's SHA-256, which identify it without storing it."""
    return hashlib.sha256(octets(token)).hexdigest()[:16]


def octets(token: str) -> bytes:
    """Return the bytes of a header's value: aiohttp decodes them so that they come back unchanged."""
    return token.encode("utf-8", "surrogateescape")
