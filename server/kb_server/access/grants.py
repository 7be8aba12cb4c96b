"""What one caller may do here: found out once for a token, and carried by each of its calls.

Tools that a caller may not use are refused before they run, and are not in its list. Which documents it
reaches is not decided here: its access goes with each request to the engine, whose queries know nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import msgspec

from kb_contracts.access.keys import ANYBODY, Key, Quotas
from kb_contracts.access.reach import Access, Right
from kb_server.engine_client.errors import EngineFault
from mcp_aiohttp.protocol.caller import Identity

_OUT_OF_REACH = frozenset({"textfile"})
"""Toolsets whose content is in no collection: callers with a reach use one where their key names it."""


class Meter(Protocol):
    """Counts what callers do, by their names. All raise ToolError, and then have counted nothing."""

    def count_call(self, name: str, most: int) -> None:
        """Count a call, of which `most` are free in a minute."""

    def take(self, name: str, quotas: Quotas, documents: int, size: int) -> None:
        """Count documents and bytes that are taken in; negative ones are given back."""


class TokenScopes(msgspec.Struct, frozen=True):
    """Scopes of an access token, and those that its issuer can add."""

    granted: tuple[str, ...]
    by_right: Mapping[Right, str]

    def with_right(self, right: Right) -> str:
        """The granted scopes and the one of a right, separated by blanks; "" if no scope stands for it."""
        scope = self.by_right.get(right)
        return " ".join((*self.granted, scope)) if scope is not None else ""


class Grant(msgspec.Struct, frozen=True):
    """What a caller may do. `meter` counts what its quotas bound; without one nothing is bounded."""

    access: Access = Access(ANYBODY)
    toolsets: frozenset[str] | None = None
    """None: all that are served, but for those that the reach leaves out."""
    quotas: Quotas = Quotas()
    meter: Meter | None = None
    is_one_caller: bool = False
    """Whether the name stands for one caller, and not for everybody who has the only key."""
    scopes: TokenScopes | None = None
    """Scopes of the caller's access token; None for a key."""

    @property
    def name(self) -> str:
        """Who it is, for logs and for what is kept apart by caller."""
        return self.access.name

    def may_use(self, toolset: str) -> bool:
        """Whether the caller may use tools of this toolset at all."""
        if self.toolsets is None:
            return self.access.reach is None or toolset not in _OUT_OF_REACH
        return toolset in self.toolsets

    def refusal(self, right: Right, toolset: str) -> str:
        """Why the caller may not use a tool of this toolset that needs this right; empty where it may."""
        if not self.may_use(toolset):
            return f"This key is not for the toolset {toolset}. Ask for one that is."
        if right not in self.access.rights:
            return f"This key may not {right}. Ask for one that may."
        return ""

    def missing_scope(self, right: Right, toolset: str) -> str:
        """All scopes that a token needs to use a tool that is refused for its right; "" if no scope helps."""
        if self.scopes is None or right in self.access.rights or not self.may_use(toolset):
            return ""
        return self.scopes.with_right(right)

    def may_give(self, tag: str) -> bool:
        """Whether a document may be given this tag; the engine says the same, when it has the bytes."""
        return self.access.reach is None or self.access.reach.may_change(tag)

    def count_call(self) -> None:
        """Count a call of a tool. Raises ToolError: `rate_limited`."""
        if self.meter is not None and (most := self.quotas.calls_per_minute) is not None:
            self.meter.count_call(self.name, most)

    def take(self, documents: int, size: int) -> None:
        """Count what is about to be taken in, in documents and bytes. Raises ToolError: `quota_exceeded`."""
        if self.meter is not None:
            self.meter.take(self.name, self.quotas, documents, size)

    def check_room(self, documents: int, size: int) -> None:
        """Whether so much may still be taken in. Raises ToolError: `quota_exceeded`."""
        self.take(documents, size)
        self.give_back(documents, size)

    @contextmanager
    def adding(self, documents: int, size: int, has_left: Callable[[], bool]) -> Iterator[None]:
        """Count what is sent to the engine meanwhile, unless that does not take it. Raises as `take`.

        `has_left`: whether a request that is cancelled may have been taken all the same.
        """
        self.take(documents, size)
        try:
            yield
        except (EngineFault, asyncio.CancelledError) as ended:
            if isinstance(ended, EngineFault) or not has_left():
                self.give_back(documents, size)
            raise

    def give_back(self, documents: int, size: int) -> None:
        """What was counted was not taken in after all."""
        if self.meter is not None:
            self.meter.take(self.name, Quotas(), -documents, -size)


EVERYBODY = Grant()
"""Where no key is needed, and where nobody else can call, as on stdio."""

GRANT: ContextVar[Grant] = ContextVar("grant", default=EVERYBODY)
"""On behalf of whom the call is made that is being served; the engine's client sends its access."""


def grant_of_key(key: Key, meter: Meter | None) -> Grant:
    """What a key allows."""
    bounded = key.quotas != Quotas()
    toolsets = None if key.toolsets is None else frozenset(key.toolsets)
    return Grant(key.access, toolsets, key.quotas, meter if bounded else None, is_one_caller=bool(key.id))


def grant_of(identity: Identity) -> Grant:
    """What a caller may do whom the hosting has found out; everything where it knows but one key, or none."""
    if isinstance(identity.payload, Grant):
        return identity.payload
    return EVERYBODY if identity.name == ANYBODY else Grant(Access(identity.name))
