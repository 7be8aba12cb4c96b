"""The permissions of one caller: determined once for its bearer token, and carried by each of its calls.

Tools that a caller may not use are refused before they run, and are not in its list. The accessible documents
are not decided here: the caller's access scope goes with each request to the engine, whose queries enforce
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import msgspec

from kb_contracts.access.keys import ANYBODY, Key, KeyRing, Quotas
from kb_contracts.access.reach import Access, Right
from kb_server.engine_client.errors import EngineFault
from mcp_aiohttp.protocol.caller import Identity, TokenRefused

_OUT_OF_REACH = frozenset({"textfile"})
"""Toolsets without collections: a caller with a restricted scope needs a key that names them."""


class Meter(Protocol):
    """Counts calls and additions by the name of the caller.

    A method that raises ToolError has counted nothing.
    """

    def count_call(self, name: str, most: int) -> None:
        """Count a call; `most` calls are allowed per minute."""

    def take(self, name: str, quotas: Quotas, documents: int, size: int) -> None:
        """Count added documents and bytes; negative numbers return them."""


class TokenScopes(msgspec.Struct, frozen=True):
    """The scopes of an access token, and the scopes that its issuer can add."""

    granted: tuple[str, ...]
    by_right: Mapping[Right, str]

    def with_right(self, right: Right) -> str:
        """Return the granted scopes and the scope of a right, separated by blanks; "" if it has no scope."""
        scope = self.by_right.get(right)
        return " ".join((*self.granted, scope)) if scope is not None else ""


class Grant(msgspec.Struct, frozen=True):
    """The permissions of a caller. `meter` enforces its quotas; without a meter there are no limits."""

    access: Access = Access(ANYBODY)
    toolsets: frozenset[str] | None = None
    """None: all served toolsets, but for those excluded by a restricted scope."""
    quotas: Quotas = Quotas()
    meter: Meter | None = None
    is_one_caller: bool = False
    """True if the name stands for one caller; False for the shared key."""
    scopes: TokenScopes | None = None
    """Scopes of the caller's access token; None for a key."""

    @property
    def name(self) -> str:
        """The name of the caller, for logs and for data kept per caller."""
        return self.access.name

    def may_use(self, toolset: str) -> bool:
        """True if the caller may use tools of this toolset."""
        if self.toolsets is None:
            return self.access.reach is None or toolset not in _OUT_OF_REACH
        return toolset in self.toolsets

    def refusal(self, right: Right, toolset: str) -> str:
        """Return the reason why the caller may not use a tool that needs this right, or "" if it may."""
        if not self.may_use(toolset):
            return f"This key may not use the toolset {toolset}. Use a key that includes it."
        if right not in self.access.rights:
            return f"This key may not {right}. Use a key with this right."
        return ""

    def may_have(self, right: Right, toolset: str) -> bool:
        """True if the caller may use a tool that needs this right, now or with a token of more scopes."""
        return not self.refusal(right, toolset) or bool(self.missing_scope(right, toolset))

    def missing_scope(self, right: Right, toolset: str) -> str:
        """Return all scopes that a token needs for a tool refused for its right; "" if no scope helps."""
        if self.scopes is None or right in self.access.rights or not self.may_use(toolset):
            return ""
        return self.scopes.with_right(right)

    def may_give(self, tag: str) -> bool:
        """True if a document may be given this tag; the engine makes the same check once it has the bytes."""
        return self.access.reach is None or self.access.reach.may_change(tag)

    def count_call(self) -> None:
        """Count a call of a tool. Raises ToolError: `rate_limited`."""
        if self.meter is not None and (most := self.quotas.calls_per_minute) is not None:
            self.meter.count_call(self.name, most)

    def take(self, documents: int, size: int) -> None:
        """Count documents and bytes before they are added. Raises ToolError: `quota_exceeded`."""
        if self.meter is not None:
            self.meter.take(self.name, self.quotas, documents, size)

    def check_room(self, documents: int, size: int) -> None:
        """Check that this number of documents and bytes may be added. Raises ToolError: `quota_exceeded`."""
        self.take(documents, size)
        self.give_back(documents, size)

    @contextmanager
    def adding(self, documents: int, size: int, has_left: Callable[[], bool]) -> Iterator[None]:
        """Count an addition, and return it if the engine does not accept it. Raises as `take`.

        `has_left` tells if a cancelled request may have reached the engine, which may then have accepted it.
        """
        self.take(documents, size)
        try:
            yield
        except (EngineFault, asyncio.CancelledError) as ended:
            if isinstance(ended, EngineFault) or not has_left():
                self.give_back(documents, size)
            raise

    def give_back(self, documents: int, size: int) -> None:
        """Return documents and bytes that were counted but not added."""
        if self.meter is not None:
            self.meter.take(self.name, Quotas(), -documents, -size)


EVERYBODY = Grant()
"""For callers that need no key, and for stdio, where there is only one caller."""

GRANT: ContextVar[Grant] = ContextVar("grant", default=EVERYBODY)
"""The grant of the call being served; the engine client sends its access scope."""


def grant_of_key(key: Key, meter: Meter | None) -> Grant:
    """Return the grant of a key."""
    bounded = key.quotas != Quotas()
    toolsets = None if key.toolsets is None else frozenset(key.toolsets)
    return Grant(key.access, toolsets, key.quotas, meter if bounded else None, is_one_caller=bool(key.id))


def grant_of(identity: Identity) -> Grant:
    """Return the grant of an authenticated caller; full access if the hosting has one key or no key."""
    if isinstance(identity.payload, Grant):
        return identity.payload
    return EVERYBODY if identity.name == ANYBODY else Grant(Access(identity.name))


class Verifier(Protocol):
    """Checks the access tokens of an issuer."""

    async def identity(self, token: str) -> Identity | None:
        """Return the identity of the sender, or None if the token is not one of the issuer.

        Raises TokenRefused.
        """


class Callers:
    """An `Authenticator` for the hosting; each identity carries its `Grant`."""

    def __init__(self, keys: KeyRing, meter: Meter, tokens: Verifier | None = None) -> None:
        self._keys = keys
        self._meter = meter
        self._tokens = tokens
        self._identities: dict[str, tuple[Key, Identity]] = {}
        """By the name of the key: the key, and the identity made from it."""

    @property
    def name(self) -> str:
        """The name of the bearer token in messages."""
        if self._tokens is not None:
            return "token"
        return "key" if self._keys.has_file_keys else "KB_MCP_API_KEY"

    @property
    def is_needed(self) -> bool:
        return self._tokens is not None or self._keys.is_needed

    async def authenticate(self, token: str) -> Identity | None:
        """Return the identity of the sender.

        Raises TokenRefused: the token has expired, was revoked or is invalid.
        """
        key = self._keys.find(token)
        if key is not None:
            return self._identity(key)
        if reason := self._keys.why_not(token):
            raise TokenRefused(f"This key {reason}. Ask for a new one.", is_guess=False)
        if self._tokens is not None and token.count(".") == 2:
            return await self._tokens.identity(token)
        return None

    def _identity(self, key: Key) -> Identity:
        made_of, identity = self._identities.get(key.name, (None, None))
        if identity is None or made_of is not key:
            identity = Identity(key.name, grant_of_key(key, self._meter))
            self._identities[key.name] = (key, identity)
        return identity
