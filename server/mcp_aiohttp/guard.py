"""Admission of requests: the checks that run before every handler.

```
Gate ─┬─ TokenCheck      the bearer token (MCP paths)
      ├─ OriginCheck     Host and Origin: keeps out web pages of other sites
      └─ TrustedProxies  the proxies whose X-Forwarded-For gives the client's address
```

Host and Origin keep web pages of other sites away from a server on this machine or network. A page that
resolves its own name to this server's address (DNS rebinding) is recognized by the name it uses, and a page
that simply sends requests here by its Origin, which browsers put on every POST and on every WebSocket that
they open.

Host: accepted are loopback names and addresses, the address listened on, the name in `public_url`, and
`allowed_hosts`. A server that listens on every address (0.0.0.0, as in a container) and has no
`allowed_hosts` cannot know the names by which it is reached, such as a service name or a load balancer's. It
then checks only the Origin, and, if no token is needed, the Host of requests that a browser can make without
an Origin, refusing names that anyone could have registered (`evil.example`). Set `allowed_hosts` to check
both.

Origin: accepted are loopback origins and `allowed_origins`; a request without one does not come from a
browser.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import SplitResult, urlsplit

from aiohttp import HttpVersion11, hdrs, web
from msgspec.structs import replace

from mcp_aiohttp.authentication import (
    METADATA,
    Authenticator,
    AuthenticatorUnavailable,
    ProtectedResource,
    SingleKey,
    TrustedProxies,
    WrongTokens,
    is_loopback,
)
from mcp_aiohttp.options import HostingOptions
from mcp_aiohttp.protocol import jsonrpc
from mcp_aiohttp.protocol.caller import ANONYMOUS, NOBODY, Caller, Identity, TokenRefused, digest

log = logging.getLogger(__name__)

CALLER = web.RequestKey("CALLER", Caller)
"""The sender of a request to an MCP endpoint; behind a trusted proxy, the client that the proxy forwards."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


# --- Host and Origin ------------------------------------------------------------------------------

ANY = "*"
_LOCAL_DOMAINS = (".local", ".internal", ".home.arpa", ".svc")
"""Domains without public registration: RFC 6762, ICANN, RFC 8375, and Kubernetes' short names."""

_PREFLIGHT_HEADERS = {
    hdrs.ACCESS_CONTROL_ALLOW_METHODS: "POST, GET, PUT, DELETE",
    hdrs.ACCESS_CONTROL_ALLOW_HEADERS: (
        "Authorization, Content-Type, Accept, MCP-Protocol-Version, Mcp-Method, Mcp-Name, "
        "Mcp-Session-Id, Last-Event-ID, X-Correlation-ID, X-Request-ID, traceparent"
    ),
    hdrs.ACCESS_CONTROL_MAX_AGE: "600",
}


class OriginCheck:
    def __init__(self, options: HostingOptions) -> None:
        self._origins = {origin.rstrip("/").lower() for origin in options.allowed_origins}
        hosts = [host.lower() for host in options.allowed_hosts]
        # An IPv6 address is written in brackets in a Host header, and read without them.
        self._hosts = {host.strip("[]") if host.endswith("]") else host for host in hosts}
        listens_everywhere = _is_wildcard(options.host)
        self._knows_no_names = not hosts and listens_everywhere
        self._any_host = ANY in hosts
        if not listens_everywhere:
            self._hosts.add(options.host.lower().strip("[]"))
        public = _split(options.public_url)
        if public is not None and public.hostname:
            self._hosts.add(public.hostname)
        self._setting_names = options.names
        self._is_ours = lru_cache(maxsize=256)(self._is_name)  # honest callers send one or two

    def require(self, request: web.Request, *, is_page: bool = False) -> None:
        """Let the request pass; `is_page`: a browser may get it without a token and without an Origin.
        Raises Refusal: 421 for a Host that is not this server's, 403 for a foreign Origin, or for two.
        """
        hosts = request.headers.getall(hdrs.HOST, [])
        any_host = self._any_host or (self._knows_no_names and not is_page)
        if not any_host and (len(hosts) != 1 or not self._is_ours(hosts[0])):
            raise jsonrpc.Refusal(
                421,
                jsonrpc.HOST_NOT_ALLOWED,
                "host_not_allowed",
                "This server does not accept that Host. Add it to "
                f"{self._setting_names.allowed_hosts} if it is correct.",
            )
        origins = request.headers.getall(hdrs.ORIGIN, ())
        if len(origins) > 1:
            raise jsonrpc.Refusal(
                403, jsonrpc.ORIGIN_NOT_ALLOWED, "origin_not_allowed", "Send the header `Origin` once."
            )
        if origins and not self.admits(origins[0]):
            raise jsonrpc.Refusal(
                403,
                jsonrpc.ORIGIN_NOT_ALLOWED,
                "origin_not_allowed",
                "Web pages of that Origin may not call. Add it to "
                f"{self._setting_names.allowed_origins} where they should.",
            )

    def admits(self, origin: str) -> bool:
        if ANY in self._origins or origin.lower() in self._origins:
            return True
        parts = _split(origin)
        return parts is not None and parts.scheme in ("http", "https") and is_loopback(parts.hostname or "")

    def _is_name(self, host: str) -> bool:
        parts = _split(f"//{host}")
        if parts is None or "@" in host:
            return False
        name = (parts.hostname or "").rstrip(".")
        if self._knows_no_names and _is_local(name):
            return True
        return is_loopback(name) or name in self._hosts or host.lower() in self._hosts


def _is_preflight(request: web.Request) -> bool:
    """True for a CORS preflight request, which never carries credentials."""
    return (
        request.method == hdrs.METH_OPTIONS
        and hdrs.ORIGIN in request.headers
        and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers
    )


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError for an invalid port
    except ValueError:
        return None
    return parts


def _is_local(name: str) -> bool:
    """True if the name cannot be registered publicly: an address, a name without a dot, or a local domain."""
    return bool(name) and ("." not in name or name.endswith(_LOCAL_DOMAINS) or _address(name) is not None)


def _is_wildcard(host: str) -> bool:
    address = _address(host.strip("[]"))
    return host == "" or (address is not None and address.is_unspecified)


def _address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None


# --- framing --------------------------------------------------------------------------------------


def _check_framing(request: web.Request) -> None:
    """Refuse a target with another host than the header Host, and transfer codings other than `chunked`.

    RFC 9112 ignores the header Host if the target has a host (3.2.2); in a correct request the two are equal.
    Raises Refusal: 501 for another transfer coding, 421 for a target of another host.
    """
    codings = request.headers.getall(hdrs.TRANSFER_ENCODING, ())
    if codings and [coding.strip().lower() for coding in codings] != ["chunked"]:
        raise jsonrpc.Refusal(
            501,
            jsonrpc.INVALID_REQUEST,
            "transfer_coding_not_supported",
            "Only the Transfer-Encoding chunked is supported.",
        )
    if request.raw_path.startswith("/") or request.raw_path == "*":
        return
    parts = _split(request.raw_path)
    if parts is None or parts.netloc.lower() != request.headers.get(hdrs.HOST, "").lower():
        raise jsonrpc.Refusal(
            421,
            jsonrpc.HOST_NOT_ALLOWED,
            "host_not_allowed",
            "The target of the request has another host than its header Host.",
        )


# --- the token of a request -----------------------------------------------------------------------

_FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")


class TokenCheck:
    """Authenticates the sender of a request."""

    def __init__(
        self,
        authenticator: Authenticator,
        proxies: TrustedProxies | None = None,
        wrong: WrongTokens | None = None,
        resource: ProtectedResource | None = None,
    ) -> None:
        self.authenticator = authenticator
        self.resource = resource
        self._proxies = proxies or TrustedProxies()
        self.wrong = wrong or WrongTokens(self._proxies)

    @property
    def header(self) -> str:
        """The header that a caller must send."""
        return f"Authorization: Bearer <{self.authenticator.name}>"

    async def require(self, request: web.Request) -> Identity:
        """Return the identity of the sender; `NOBODY` if no token is needed.
        Raises Refusal: 401, a token is needed and is missing, wrong, or sent twice; 403, it lacks a
        scope; 429, too many wrong tokens came from this address; 503, tokens cannot be checked now.
        """
        values = request.headers.getall(hdrs.AUTHORIZATION, ())
        if len(values) > 1:
            raise self._unauthorized(request, "Send the header `Authorization` once.")
        if not self.authenticator.is_needed:
            return NOBODY
        token = _token(values[0]) if values else None
        if token is None:
            raise self._unauthorized(request, f"A key is needed: send the header `{self.header}`.")
        address = address_of(request, self._proxies)
        self.wrong.check(address, token)
        try:
            identity = await self.authenticator.authenticate(token)
        except TokenRefused as refused:
            if refused.is_guess:
                self.wrong.count(address)
            raise self._refusal(request, refused) from None
        except AuthenticatorUnavailable as unavailable:
            wait = math.ceil(unavailable.retry_after)
            raise jsonrpc.Refusal(
                503,
                jsonrpc.UNAUTHORIZED,
                "authenticator_unavailable",
                unavailable.message,
                headers={hdrs.RETRY_AFTER: str(wait)},
                details={"retry_after": wait},
            ) from None
        if identity is None:
            self.wrong.count(address)
            words = f"The bearer token is not this server's key ({self.authenticator.name})."
            raise self._refusal(request, TokenRefused(words))
        self.wrong.accept(address, token)
        return identity

    async def require_unless_local(self, request: web.Request) -> Identity:
        """Like `require`, but admit a peer on this machine as `NOBODY`; behind a proxy no peer is local.
        Raises Refusal: as `require`.
        """
        proxied = any(header in request.headers for header in _FORWARDED)
        if proxied or self._proxies.trusts(request.remote) or not is_loopback(request.remote or ""):
            return await self.require(request)
        return NOBODY

    def _unauthorized(self, request: web.Request, message: str) -> jsonrpc.Refusal:
        return refusal(401, message, self.resource.challenge(request.path) if self.resource else "Bearer")

    def _refusal(self, request: web.Request, refused: TokenRefused) -> jsonrpc.Refusal:
        challenge = "Bearer"
        if self.resource is not None:
            challenge = self.resource.challenge(request.path, refused.error, refused.message, refused.scope)
        return refusal(403 if refused.scope else 401, refused.message, challenge)


def address_of(request: web.Request, proxies: TrustedProxies) -> str:
    """Return the address of the client: the peer, or the address forwarded by a trusted proxy."""
    forwarded = proxies.client_of(request) if proxies.networks else None
    return forwarded or request.remote or ""


def refusal(status: int, message: str, challenge: str) -> jsonrpc.Refusal:
    """The refusal of a request for its token: 401 `unauthorized`, or 403 `insufficient_scope`."""
    error_type = "unauthorized" if status == 401 else "insufficient_scope"
    return jsonrpc.Refusal(
        status, jsonrpc.UNAUTHORIZED, error_type, message, headers={hdrs.WWW_AUTHENTICATE: challenge}
    )


def bearer(request: web.Request) -> str | None:
    """Return the token of `Authorization: Bearer`, or None; also None for two such headers, as ambiguous."""
    values = request.headers.getall(hdrs.AUTHORIZATION, ())
    return _token(values[0]) if len(values) == 1 else None


@lru_cache(maxsize=256)
def _token(value: str) -> str | None:
    scheme, _, token = value.strip().partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def credential(request: web.Request) -> str:
    """Return a short digest of the caller's token, or `anonymous`."""
    token = bearer(request)
    return digest(token) if token is not None else ANONYMOUS


# --- all of it ------------------------------------------------------------------------------------


_READING = (hdrs.METH_GET, hdrs.METH_HEAD)
_OAUTH_PATHS = ("/.well-known/oauth-", "/.well-known/openid-")


class Gate:
    """The middleware before every handler: checks the key, Host and Origin, and answers errors as JSON."""

    def __init__(self, options: HostingOptions, proxies: TrustedProxies) -> None:
        self.tokens = TokenCheck(
            options.authenticator or SingleKey(options.key, options.names.key),
            proxies,
            WrongTokens(proxies, options.sockets.owner_of),
            options.resource,
        )
        self.proxies = proxies
        self.on_refused = options.on_refused
        self.guarded: dict[Handler, str] = {}
        """The handlers of MCP endpoints, which require the key, each with its path."""
        self.open: set[Handler] = set()
        """Handlers that need no check of the token or the Host: probes come by the address of a pod."""
        self.page: Callable[[web.Request], Awaitable[web.Response | None]] = _no_page
        """Returns the answer to a request for an unknown path; None for the one in JSON."""
        self._origin = OriginCheck(options)

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check the request, then answer it; every failure is answered in JSON."""
        try:
            identity = await self._check(request)
            if self.is_mcp(request):
                request[CALLER] = self._caller(request, identity)
            if not _is_preflight(request):
                return await handler(request)
            # Permit the headers and methods that MCP clients use; the Origin was checked before.
            return web.Response(status=204, headers=_PREFLIGHT_HEADERS)
        except jsonrpc.Refusal as refusal:
            error_type = refusal.data["error_type"]
            self.report_refusal(request, str(error_type), refusal.status)
            response = refusal_response(refusal)
        except web.HTTPException as error:
            page = await self.page(request) if isinstance(error, web.HTTPNotFound) else None
            response = page or self._http_error(request, error)
        # the boundary of HTTP: an internal error is logged, and answered without its message
        except Exception:
            fields = {"method": request.method, "route": route_of(request)}
            log.exception("A request failed unexpectedly", extra=fields)
            body = jsonrpc.error_bytes(None, jsonrpc.INTERNAL_ERROR, "Internal error")
            response = web.Response(status=500, body=body, content_type="application/json")
        if asks_for_websocket(request):
            response.force_close()  # no HTTP is read after a request for another protocol
        return response

    async def caller_of(self, request: web.Request) -> Caller:
        """Authenticate the sender of a request again: its token may have been revoked.
        Raises Refusal: as for a new request.
        """
        caller = self._caller(request, await self.tokens.require(request))
        return replace(caller, recheck=partial(self.caller_of, request))

    def _caller(self, request: web.Request, identity: Identity) -> Caller:
        return Caller(credential(request), request.headers, self.address_of(request), identity)

    def address_of(self, request: web.Request) -> str:
        """Return the address of the client: the peer, or the address forwarded by a trusted proxy."""
        return address_of(request, self.proxies)

    def report_refusal(self, request: web.Request, error_type: str, status: int) -> None:
        """Log that a request was refused, with the address that it came from, and count it."""
        self.on_refused(error_type, self.address_of(request))
        fields = {
            "status": status,
            "error": error_type,
            "route": route_of(request),
            "address": self.address_of(request),
        }
        log.info("Refused a request", extra=fields)

    def is_mcp(self, request: web.Request) -> bool:
        """True if the request is for an MCP server."""
        return request.match_info.handler in self.guarded

    def is_open(self, request: web.Request) -> bool:
        """True if the request is exempt from all checks."""
        return request.match_info.handler in self.open

    async def allow_reading(self, request: web.Request, response: web.StreamResponse) -> None:
        """Let an admitted browser page read the answer."""
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is not None and self._origin.admits(origin):
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
            response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = "WWW-Authenticate"
            response.headers[hdrs.VARY] = "Origin"

    def expecting(
        self, check: Callable[[web.Request], None]
    ) -> Callable[[web.Request], Awaitable[web.Response | None]]:
        """Return a handler of `Expect: 100-continue`: a refused caller need not send its body first.

        `check` is the endpoint's own check of the headers.
        """

        async def answer(request: web.Request) -> web.Response | None:
            try:
                await self._check(request)
                check(request)
            except jsonrpc.Refusal as refusal:
                self.report_refusal(request, str(refusal.data["error_type"]), refusal.status)
                return refusal_response(refusal)
            if request.headers[hdrs.EXPECT].lower() == "100-continue" and request.version >= HttpVersion11:
                await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                request.writer.output_size = 0  # the response itself has not begun
            return None

        return answer

    async def _check(self, request: web.Request) -> Identity:
        _check_framing(request)
        identity = NOBODY
        if self.is_open(request):
            return identity
        # The one exception to the key on every method: a preflight request carries no credentials.
        permitted = _is_preflight(request) and self._origin.admits(request.headers[hdrs.ORIGIN])
        if self.is_mcp(request) and not permitted:
            identity = await self.tokens.require(request)
        is_page = request.method in _READING and not self.is_mcp(request)
        self._origin.require(request, is_page=is_page and not self.tokens.authenticator.is_needed)
        return identity

    def _http_error(self, request: web.Request, error: web.HTTPException) -> web.Response:
        if error.status < 400:
            raise error
        if not isinstance(error, web.HTTPNotFound):
            headers = {hdrs.ALLOW: error.headers[hdrs.ALLOW]} if hdrs.ALLOW in error.headers else {}
            code = error.reason.lower().replace(" ", "_")
            body = {"error": code, "message": f"{request.method} {request.path}: {error.reason}"}
            return web.json_response(body, status=error.status, headers=headers)
        paths = f"MCP is served at {', '.join(self.guarded.values())}."
        body = {"error": "not_found", "message": f"There is nothing at this path. {paths}"}
        if request.path == "/register" or request.path.startswith(_OAUTH_PATHS):
            body["message"] = f"{self._how_to_authenticate()} {paths}"
            body["error_description"] = body["message"]  # the member that OAuth clients print
        return web.json_response(body, status=404)

    def _how_to_authenticate(self) -> str:
        if (resource := self.tokens.resource) is not None:
            servers = ", ".join(resource.authorization_servers)
            return f"This server issues no tokens: {servers} does, as {METADATA} says."
        if self.tokens.authenticator.is_needed:
            return f"This server has no OAuth. Send the header `{self.tokens.header}`."
        return "This server has no OAuth. No key is needed."


async def _no_page(_request: web.Request) -> None:
    return None


GATE = web.AppKey("GATE", Gate)
"""The gate of an application, for code that adds routes to it."""


def route_of(request: web.Request) -> str:
    """The route's own pattern: a path may hold a one-time token, and must not be logged."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else ""


def refusal_response(refusal: jsonrpc.Refusal) -> web.Response:
    """The answer to a request that is refused: a JSON-RPC error with an HTTP status."""
    response = web.Response(
        status=refusal.status,
        headers=refusal.headers,
        body=jsonrpc.error_bytes(None, refusal.code, refusal.message, refusal.data),
        content_type="application/json",
    )
    if refusal.close:
        response.force_close()
    return response


def asks_for_websocket(http: web.Request) -> bool:
    return http.method == hdrs.METH_GET and http.headers.get(hdrs.UPGRADE, "").strip().lower() == "websocket"
