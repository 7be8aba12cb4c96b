"""The bearer key: who may call at all."""

from __future__ import annotations

import hmac

from aiohttp import hdrs, web

from mcp_aiohttp.guard.proxies import PROXIES, TrustedProxies, is_loopback
from mcp_aiohttp.protocol.caller import ANONYMOUS, Caller, digest, octets
from mcp_aiohttp.protocol.refusal import UNAUTHORIZED, Refusal

_FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")


class KeyCheck:
    """Compares the bearer token of a request with the key; an empty key lets everybody in.

    White space around the key is dropped: it ends up there from files, and no header could carry it.
    """

    def __init__(self, key: str, proxies: TrustedProxies | None = None, *, name: str = "key") -> None:
        """`name` is what messages call the key."""
        self.name = name
        self.header = f"Authorization: Bearer <{name}>"
        """What a caller sends."""
        self._key = key.strip().encode()
        self._proxies = proxies or TrustedProxies()

    @property
    def is_set(self) -> bool:
        """Whether a key is wanted at all."""
        return bool(self._key)

    def require(self, request: web.Request) -> None:
        """Let the request pass.

        Raises:
            Refusal: 401, the key is set and the request does not carry it, or it carries two.
        """
        if len(request.headers.getall(hdrs.AUTHORIZATION, ())) > 1:
            raise _refused("Send the header `Authorization` once.")
        if not self._key:
            return
        token = bearer(request)
        if token is None:
            raise _refused(f"A key is needed: send the header `{self.header}`.")
        if not hmac.compare_digest(octets(token), self._key):
            raise _refused(f"The bearer token is not this server's key ({self.name}).")

    def require_unless_local(self, request: web.Request) -> None:
        """As `require`, but a peer on this machine passes; behind a proxy nobody counts as one.

        Raises:
            Refusal: 401.
        """
        proxied = any(header in request.headers for header in _FORWARDED)
        if proxied or self._proxies.trusts(request.remote) or not is_loopback(request.remote or ""):
            self.require(request)


def bearer(request: web.Request) -> str | None:
    """The token of `Authorization: Bearer`, or None; two such headers carry none, for they disagree."""
    values = request.headers.getall("Authorization", [])
    scheme, _, token = values[0].strip().partition(" ") if len(values) == 1 else ("", "", "")
    return token.strip() or None if scheme.lower() == "bearer" else None


def credential(request: web.Request) -> str:
    """A short digest of the caller's token, or `anonymous`."""
    token = bearer(request)
    return digest(token) if token is not None else ANONYMOUS


def caller_of(request: web.Request) -> Caller:
    """Who sent the request, for the calls in it; behind a trusted proxy the one for whom it asks."""
    client = request.config_dict[PROXIES].client_of(request)
    return Caller(credential(request), request.headers, client or request.remote or "")


def _refused(message: str) -> Refusal:
    return Refusal(401, UNAUTHORIZED, "unauthorized", message, headers={"WWW-Authenticate": "Bearer"})
