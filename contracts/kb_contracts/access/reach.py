"""What a caller may do, and with which documents.

    key or token ──▶ Access ─┬─ name      for logs and the audit
                             ├─ rights    read, write, delete, administer
                             └─ reach     tags, of which a document must carry one; None: every document

An operation needs one right. Beyond it the reach decides, in the store's queries and nowhere else: what lies
outside is not there, for any question that a caller can think of. An engine knows tags, and no collections:
a key for the collection `memory` reaches the tag `collection:memory`.

A server that holds the engine's key asks for others. It says for whom in the header `X-KB-Access`, which can
only take away: what is asked for may be no more than what the key itself is for. So it needs no signature,
and nobody gains by forging it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Literal, get_args

import msgspec

from kb_contracts.api.errors import EngineError
from kb_contracts.api.ragler import PREFIX

ACCESS = "X-KB-Access"
"""The header that narrows a request to what somebody else may do; JSON in ASCII."""
MAX_ACCESS_BYTES = 16_384

Right = Literal["read", "write", "delete", "administer"]
RIGHTS: frozenset[Right] = frozenset(get_args(Right))


class Reach(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Tags, and beginnings of tags. One with neither reaches nothing.

    Tags that begin with `collection:` say whose a document is, so that only those within the reach may be
    given or taken; other tags are free.
    """

    tags: frozenset[str] = frozenset()
    prefixes: frozenset[str] = frozenset()

    def has(self, tag: str) -> bool:
        """Whether a document that carries this tag is within the reach."""
        return tag in self.tags or any(tag.startswith(prefix) for prefix in self.prefixes)

    def admits(self, tags: Iterable[str]) -> bool:
        """Whether a document with these tags is."""
        return any(self.has(tag) for tag in tags)

    def may_change(self, tag: str) -> bool:
        """Whether the tag may be given to a document, or taken off it."""
        return not tag.startswith(PREFIX) or self.has(tag)

    def within(self, other: Reach) -> Reach:
        """What is within both."""
        return Reach(
            frozenset(filter(other.has, self.tags)) | frozenset(filter(self.has, other.tags)),
            frozenset(
                max(mine, theirs, key=len)
                for mine in self.prefixes
                for theirs in other.prefixes
                if mine.startswith(theirs) or theirs.startswith(mine)
            ),
        )


class Access(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A caller. `name` is a key's or a token's subject; no two that see different things share one."""

    name: str = ""
    rights: frozenset[Right] = RIGHTS
    reach: Reach | None = None

    @property
    def is_unlimited(self) -> bool:
        """Whether it is everything that there is."""
        return self.reach is None and self.rights == RIGHTS

    def narrowed(self, other: Access) -> Access:
        """What both may do, under the name of the other."""
        reach = other.reach if self.reach is None else self.reach
        if self.reach is not None and other.reach is not None:
            reach = self.reach.within(other.reach)
        return Access(other.name or self.name, self.rights & other.rights, reach)


REACH: ContextVar[Reach | None] = ContextVar("reach", default=None)
"""How far the request reaches that is being served; None: every document.

The adapter sets it around the handler of every operation, and a store reads it where it opens a transaction,
so that no handler can forget it. What an engine does of itself, as workers do, has no request: it reaches
everything, or what the job says that it does.
"""

EVERYTHING = Access()
"""Whoever has the engine's own key, or asks where none is needed."""


def access_header(access: Access) -> str:
    """The value of the header."""
    return json.dumps(msgspec.to_builtins(access, order="deterministic"))


def access_from(header: str) -> Access:
    """Raises EngineError: `invalid_parameter`."""
    try:
        if len(header) > MAX_ACCESS_BYTES:
            raise msgspec.ValidationError(f"at most {MAX_ACCESS_BYTES} bytes are taken")
        return msgspec.json.decode(header, type=Access)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise EngineError("invalid_parameter", f"{ACCESS} does not fit: {error}", parameter=ACCESS) from error
