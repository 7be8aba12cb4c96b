"""Who sends a message, as far as the transport knows."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

ANONYMOUS = "anonymous"


class Identity(msgspec.Struct, frozen=True):
    """Who a caller is found to be. `payload` is the application's, and nobody else looks at it."""

    name: str = ANONYMOUS
    payload: Any = None


NOBODY = Identity()
"""Where no token is needed."""


class Connected:
    """A connection that carries messages both ways, for what lasts as long as it does."""

    def __init__(self) -> None:
        self._endings: list[Callable[[], None]] = []

    def on_end(self, ending: Callable[[], None]) -> None:
        """Have `ending` called when the connection has ended; it raises nothing."""
        self._endings.append(ending)

    def end(self) -> None:
        """The connection has ended."""
        for ending in self._endings:
            ending()


class Caller(msgspec.Struct, frozen=True):
    """What came beside a message. On stdio there are no headers, and the caller is anonymous.

    Handlers of a hosted server find it in `context.request`.
    """

    credential: str = ANONYMOUS
    """A short digest of the bearer token that tells callers apart; never the token."""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """aiohttp's mappings ignore case."""
    address: str = ""
    identity: Identity = NOBODY
    connection: Connected | None = None
    """None over HTTP, where every request comes on its own."""
    recheck: Callable[[], Awaitable[Caller]] | None = None
    """Finds out again who it is, for what lasts longer than its request; raises `Refusal` where its token
    opens nothing any more. None where nothing lasts, and on stdio."""


@lru_cache(maxsize=256)
def digest(token: str) -> str:
    """Tells one bearer token from another without holding it: 16 hexadecimal characters of its SHA-256."""
    return hashlib.sha256(octets(token)).hexdigest()[:16]


def octets(token: str) -> bytes:
    """The bytes of a header's value: aiohttp decodes them so that they come back unchanged."""
    return token.encode("utf-8", "surrogateescape")
