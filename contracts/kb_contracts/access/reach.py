"""The access of a caller: its rights, and its access scope.

    key or token ──▶ Access ─┬─ name      for logs and the audit
                             ├─ rights    read, write, delete, administer
                             └─ reach     the access scope: tags, of which a document must carry one;
                                          None: every document

An operation needs one right. Apart from that only the access scope decides, and only in the store's queries:
documents outside of it do not exist for the caller, in any operation. An engine knows tags, not collections:
the access scope of a key for the collection `memory` is the tag `collection:memory`.

A server that holds the engine's key makes requests for its callers. It names the caller in the header
`X-KB-Access`, which can only reduce the access of the key itself. Hence the header needs no signature, and
forging it gains nothing.
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
"""The header that narrows a request to the access of another caller; JSON in ASCII."""
MAX_ACCESS_BYTES = 16_384

Right = Literal["read", "write", "delete", "administer"]
RIGHTS: frozenset[Right] = frozenset(get_args(Right))


class Reach(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An access scope: tags, and prefixes of tags. Without both it contains no document.

    Tags that begin with `collection:` determine the owner of a document, so only the ones within the scope
    may be added or removed; other tags are free.
    """

    tags: frozenset[str] = frozenset()
    prefixes: frozenset[str] = frozenset()

    def has(self, tag: str) -> bool:
        """True if a document that carries this tag is within the scope."""
        return tag in self.tags or any(tag.startswith(prefix) for prefix in self.prefixes)

    def admits(self, tags: Iterable[str]) -> bool:
        """True if a document with these tags is within the scope."""
        return any(self.has(tag) for tag in tags)

    def may_change(self, tag: str) -> bool:
        """True if the tag may be added to a document, or removed from it."""
        return not tag.startswith(PREFIX) or self.has(tag)

    def within(self, other: Reach) -> Reach:
        """Return the intersection of both scopes."""
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
    """A caller. `name` is a key's name or a token's subject; callers with different access have different
    names.
    """

    name: str = ""
    rights: frozenset[Right] = RIGHTS
    reach: Reach | None = None

    @property
    def is_unlimited(self) -> bool:
        """True if it has all rights and the scope is every document."""
        return self.reach is None and self.rights == RIGHTS

    def narrowed(self, other: Access) -> Access:
        """Return the intersection of both, under the name of the other."""
        reach = other.reach if self.reach is None else self.reach
        if self.reach is not None and other.reach is not None:
            reach = self.reach.within(other.reach)
        return Access(other.name or self.name, self.rights & other.rights, reach)


REACH: ContextVar[Reach | None] = ContextVar("reach", default=None)
"""Access scope of the current request; None: every document.

The adapter sets it around the handler of every operation, and a store reads it when it opens a transaction,
so that no handler can forget it. Work of the engine itself, such as that of workers, has no request: its
scope is every document, or the scope stored in the job.
"""

EVERYTHING = Access()
"""The access of a caller with the engine's own key, or without a key if no key is needed."""


def access_header(access: Access) -> str:
    """Return the value of the header."""
    return json.dumps(msgspec.to_builtins(access, order="deterministic"))


def access_from(header: str) -> Access:
    """Return the access in the header. Raises EngineError: `invalid_parameter`."""
    try:
        if len(header) > MAX_ACCESS_BYTES:
            raise msgspec.ValidationError(f"at most {MAX_ACCESS_BYTES} bytes are taken")
        return msgspec.json.decode(header, type=Access)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise EngineError("invalid_parameter", f"{ACCESS} does not fit: {error}", parameter=ACCESS) from error
