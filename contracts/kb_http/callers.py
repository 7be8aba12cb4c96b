"""The caller of a request and its access: the token, the headers that narrow it, and foreign web pages.

    token ──▶ Access ── X-KB-Access ── X-User-Role ──▶ remaining access ──▶ the operation's right
              of the key    both only reduce it

An engine that requires no key has to refuse foreign web pages. A browser on this machine can reach the
engine's port on behalf of any page that it shows. Such a page cannot read a response, but it can post a form
with a file, which is how a file is submitted; its Origin header reveals it. A page whose own name is made to
resolve to this machine (DNS rebinding) could read responses too; its Host header reveals it, which is a
domain with a dot. An engine that listens on more than loopback cannot know its own names, and checks the
Origin only. With a key set neither matters: no page knows it.
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
from kb_http.connections import is_loopback

AccessOf = Callable[[str], Access | None]
"""Returns the access of a token, or of no token (the empty string); None: the token is unknown."""

_ONCE = (hdrs.AUTHORIZATION, hdrs.ORIGIN)
_OF_SERVICE: frozenset[Right] = frozenset(["read"])
"""The rights of the role `SERVICE`."""


def token_of(headers: MultiMapping[str]) -> str:
    """Return the bearer token of a request, or the empty string."""
    scheme, _, token = headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def access_by_token(api_key: str, access_of: AccessOf | None) -> AccessOf:
    """Return a function from tokens to access.

    The engine's own key has full access; `access_of` determines that of other tokens. Without both, no token
    is needed.
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
    """The refusal of a missing or unknown token."""
    return EngineError("unauthorized", "Send Authorization: Bearer with the engine's KB_API_KEY.")


def narrowed(access: Access, headers: MultiMapping[str], published: Reach | None = None) -> Access:
    """Return the access after both headers that narrow it: the access of the caller of the request.

    `published` is the access scope of the role `SERVICE`; None: unlimited.

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
    """Return the caller for an audit log, and the name of the key if the key is another caller's.

    `held` is the access of the token, and `narrowed` the access after the headers. The name in the header
    counts only with an unlimited key, as servers have, which make requests for their callers. A limited key
    determines the caller by itself, and without required keys the caller is unknown.
    """
    if not is_known:
        return "", ""
    if not held.is_unlimited:
        return held.name, ""
    return narrowed.name, held.name if held.name != narrowed.name else ""


def right_missing(operation: AnyOperation, headers: MultiMapping[str]) -> EngineError:
    """The refusal of a caller without the operation's right."""
    if operation.right not in _OF_SERVICE and not may_change(headers.get(USER_ROLE)):
        return EngineError(
            "forbidden", f"The role {SERVICE!r} may read and search, and change nothing.", parameter=USER_ROLE
        )
    return EngineError("forbidden", f"This key may not {operation.right}. Use a key with this right.")


def is_distinct(access: Access) -> bool:
    """True if the access belongs to one of several callers that may see different documents."""
    return bool(access.name) or access.reach is not None


@lru_cache(maxsize=256)
def credential_of(authorization: str, access: Access) -> str:
    """Return a digest of this header that differs between callers with different access scopes.

    For an access without name and scope it covers the key only, as in earlier versions: kept responses are
    stored under it.
    """
    presented = authorization.encode("utf-8", "surrogateescape")
    if is_distinct(access):
        presented += b"\n" + access_header(Access(access.name, reach=access.reach)).encode()
    return hashlib.sha256(presented).hexdigest()[:16]


def caller_header(headers: MultiMapping[str], name: str, max_chars: int) -> str | None:
    """Return the value of a caller's header, or None. A repeated header is refused, since neither value may
    win.
    """
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
    """Refuse a request with two `Authorization` or `Origin` headers: a proxy may have read the other one.

    Raises:
        EngineError: `unauthorized`.
    """
    for name in _ONCE:
        if len(headers.getall(name, ())) > 1:
            raise EngineError("unauthorized", f"Send the header {name} once.")


def check_framing(request: web.Request) -> None:
    """Refuse a target with another host than the header Host, and transfer codings other than `chunked`.

    RFC 9112 ignores the header Host if the target has a host (3.2.2); in a correct request the two are equal.
    The body of a request with another coding would be read encoded (6.1).

    Raises:
        EngineError: `invalid_request`.
    """
    codings = request.headers.getall(hdrs.TRANSFER_ENCODING, ())
    if codings and [coding.strip().lower() for coding in codings] != ["chunked"]:
        raise EngineError("invalid_request", "Only the Transfer-Encoding chunked is supported.")
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


# The same few names come with every request.
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
