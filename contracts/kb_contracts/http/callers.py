"""Who calls, and what that caller may do: the token, the headers that narrow it, and pages of strangers.

    token ──▶ Access ── X-KB-Access ── X-User-Role ──▶ what is left of it ──▶ the operation's right
              of the key    both only take away

An engine that requires no key has to keep web pages of strangers away. A browser on this machine reaches the
engine's port on behalf of any page that it shows. Such a page cannot read a response, but it can post a form
with a file, which is how a file is submitted; its Origin header gives it away. A page whose own name is made
to resolve to this machine (DNS rebinding) could read responses too; it is recognised by its Host header,
which is a domain, because a stranger owns no name without a dot. An engine that listens on more than loopback
cannot know the names that it is reached by, and checks the Origin alone. With a key set neither matters: no
page knows it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from functools import lru_cache
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from multidict import MultiMapping

from kb_contracts.access.reach import ACCESS, EVERYTHING, Access, Reach, Right, access_from, access_header
from kb_contracts.api.errors import EngineError
from kb_contracts.api.operations import AnyOperation
from kb_contracts.api.ragler import MAX_ROLE_CHARS, SERVICE, USER_ROLE, may_change
from kb_contracts.http.connections import is_loopback

AccessOf = Callable[[str], Access | None]
"""What the holder of a token may do, which is empty where none was sent; None: it is not known."""

_ONCE = (hdrs.AUTHORIZATION, hdrs.ORIGIN)
_OF_SERVICE: frozenset[Right] = frozenset(["read"])
"""The rights of the role `SERVICE`."""


def token_of(headers: MultiMapping[str]) -> str:
    """The bearer token that came with a request; empty where none did."""
    scheme, _, token = headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def access_by_token(api_key: str, access_of: AccessOf | None) -> AccessOf:
    """The engine's own key opens everything; other tokens, and none, what `access_of` says of them.

    Without either nobody needs a token.
    """
    expected = api_key.encode()

    def access(token: str) -> Access | None:
        if api_key and hmac.compare_digest(token.encode("utf-8", "surrogateescape"), expected):
            return EVERYTHING
        if access_of is not None:
            return access_of(token)
        return None if api_key else EVERYTHING

    return access


def unauthorized() -> EngineError:
    """The token is missing or not known."""
    return EngineError("unauthorized", "Send Authorization: Bearer with the engine's KB_API_KEY.")


def narrowed(access: Access, headers: MultiMapping[str], published: Reach | None = None) -> Access:
    """What is left of it by the two headers that take away: those of the one whom a request is made for.

    `published` is how far the role `SERVICE` reaches; None: everywhere.

    Raises:
        EngineError: `invalid_parameter`.
    """
    values = headers.getall(ACCESS, ())
    if len(values) > 1:
        raise EngineError("invalid_parameter", f"Send the header {ACCESS} once.", parameter=ACCESS)
    if values:
        access = access.narrowed(access_from(values[0]))
    role = caller_header(headers, USER_ROLE, MAX_ROLE_CHARS)
    if role is None or may_change(role):
        return access
    return access.narrowed(Access(rights=_OF_SERVICE, reach=published))


def caller_of(held: Access, narrowed: Access, *, is_known: bool) -> tuple[str, str]:
    """Who asks, for an audit log, and the name of the key by which that was said where it is another one.

    `held` is what the token is for, `narrowed` what headers have left of it. The name in the header counts
    with a key to everything, as servers have, which ask for others. Others ask for themselves, whatever they
    send; and nobody is known where nobody needs a key.
    """
    if not is_known:
        return "", ""
    if not held.is_unlimited:
        return held.name, ""
    return narrowed.name, held.name if held.name != narrowed.name else ""


def right_missing(operation: AnyOperation, headers: MultiMapping[str]) -> EngineError:
    """What is answered to whoever lacks the operation's right."""
    if operation.right not in _OF_SERVICE and not may_change(headers.get(USER_ROLE)):
        return EngineError(
            "forbidden",
            f"The role {SERVICE!r} may read and search, and change nothing.",
            parameter=USER_ROLE,
        )
    return EngineError("forbidden", f"This key may not {operation.right}. Ask for one that may.")


def is_distinct(access: Access) -> bool:
    """Whether it is of one of several callers, each of whom may see something else."""
    return bool(access.name) or access.reach is not None


def credential_of(authorization: str, access: Access) -> str:
    """A digest of this header that no two callers share who see different things.

    Of a key to everything it is of the key alone, as it was before there were others: answers are kept
    under it.
    """
    presented = authorization.encode("utf-8", "surrogateescape")
    if is_distinct(access):
        presented += b"\n" + access_header(Access(access.name, reach=access.reach)).encode()
    return hashlib.sha256(presented).hexdigest()[:16]


def caller_header(headers: MultiMapping[str], name: str, max_chars: int) -> str | None:
    """What a caller's header names, None where it is absent. Sent twice it is refused: neither may win."""
    values = headers.getall(name, [])
    if not values:
        return None
    value = values[0]
    if len(values) > 1 or not 1 <= len(value) <= max_chars or not value.isascii() or not value.isprintable():
        raise EngineError(
            "invalid_parameter",
            f"{name} takes 1 to {max_chars} printable ASCII characters, once.",
            parameter=name,
        )
    return value


# --- web pages of strangers ----------------------------------------------------------------------


def check_origin(headers: MultiMapping[str], host: str) -> None:
    """Refuse a request by a foreign page to an engine that listens on `host`.

    Raises:
        EngineError: `unauthorized`.
    """
    origin = headers.get(hdrs.ORIGIN)
    if origin is not None and not _is_local(origin):
        raise EngineError("unauthorized", "Web pages may not use an engine that has no KB_API_KEY.")
    if _listens_locally(host) and _is_domain(f"//{headers.get(hdrs.HOST, '')}"):
        raise EngineError("unauthorized", "Without a KB_API_KEY this engine serves no Host that is a domain.")


def check_unrepeated(headers: MultiMapping[str]) -> None:
    """Refuse a request whose two `Authorization` or `Origin` headers two readers could read differently.

    Raises:
        EngineError: `unauthorized`.
    """
    for name in _ONCE:
        if len(headers.getall(name, ())) > 1:
            raise EngineError("unauthorized", f"Send the header {name} once.")


def check_framing(request: web.Request) -> None:
    """Refuse a target of another host than the header Host, and a transfer coding but `chunked`.

    Of a target with a host RFC 9112 has the header ignored (3.2.2); the two agree in an honest request.
    A coding that is not undone would be taken for the body (6.1).

    Raises:
        EngineError: `invalid_request`.
    """
    codings = request.headers.getall(hdrs.TRANSFER_ENCODING, ())
    if codings and [coding.strip().lower() for coding in codings] != ["chunked"]:
        raise EngineError("invalid_request", "The only Transfer-Encoding taken is chunked.")
    if request.raw_path.startswith("/") or request.raw_path == "*":
        return
    try:
        authority = urlsplit(request.raw_path).netloc
    except ValueError:
        authority = ""
    if authority.lower() != request.headers.get(hdrs.HOST, "").lower():
        raise EngineError(
            "invalid_request", "The target of the request has another host than its header Host."
        )


# Callers send the same few names with every request.
@lru_cache(maxsize=256)
def _is_local(url: str) -> bool:
    return is_loopback(_name(url))


_listens_locally = lru_cache(maxsize=16)(is_loopback)


@lru_cache(maxsize=256)
def _is_domain(url: str) -> bool:
    name = _name(url)
    return "." in name.strip(".") and not is_loopback(name)


def _name(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
