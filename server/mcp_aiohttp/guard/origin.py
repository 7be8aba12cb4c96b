"""Host and Origin: keeps web pages of strangers away from a server on this machine or network.

A page that resolves its own name to this server's address (DNS rebinding) is recognized by the name it uses,
and a page that simply sends requests here by its Origin, which browsers put on every POST and on every
WebSocket that they open.

Host: accepted are loopback names and addresses, the address listened on, the name in `public_url`, and
`allowed_hosts`. A server that listens on every address (0.0.0.0, as in a container) and has no
`allowed_hosts` cannot know the names it is reached by, a service name or a load balancer's: there
Host is not checked, and Origin alone keeps browsers out. Set `allowed_hosts` to check both.

Origin: accepted are loopback origins and `allowed_origins`; a request without one does not come from a
browser.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from aiohttp import hdrs, web

from mcp_aiohttp.guard.proxies import is_loopback
from mcp_aiohttp.options import HostingOptions
from mcp_aiohttp.protocol.refusal import HOST_NOT_ALLOWED, ORIGIN_NOT_ALLOWED, Refusal

ANY = "*"

_MAX_KNOWN = 256
"""Values of Host whose verdict is kept; honest callers send one or two."""
_PREFLIGHT_SECONDS = "600"
_ALLOWED_HEADERS = (
    "Authorization, Content-Type, Accept, MCP-Protocol-Version, Mcp-Method, Mcp-Name, "
    "Mcp-Session-Id, Last-Event-ID, X-Correlation-ID, X-Request-ID, traceparent"
)


class OriginCheck:
    """Decides by the headers Host and Origin whether a request comes from where it may."""

    def __init__(self, options: HostingOptions) -> None:
        self._origins = {origin.rstrip("/").lower() for origin in options.allowed_origins}
        names = _names(options)
        self._any_host = ANY in names or (not options.allowed_hosts and _is_wildcard(options.host))
        self._hosts = names
        self._setting_names = options.names
        self._known: dict[str, bool] = {}

    def require(self, request: web.Request) -> None:
        """Let the request pass.

        Raises:
            Refusal: 421 for a Host that is not this server's, 403 for the Origin of a stranger, or for two.
        """
        hosts = request.headers.getall(hdrs.HOST, [])
        if not self._any_host and (len(hosts) != 1 or not self._knows(hosts[0])):
            raise Refusal(
                421,
                HOST_NOT_ALLOWED,
                "host_not_allowed",
                "This server is not reached by that Host. Add it to "
                f"{self._setting_names.allowed_hosts} where it should be.",
            )
        origins = request.headers.getall(hdrs.ORIGIN, ())
        if len(origins) > 1:
            raise Refusal(403, ORIGIN_NOT_ALLOWED, "origin_not_allowed", "Send the header `Origin` once.")
        if origins and not self.admits(origins[0]):
            raise Refusal(
                403,
                ORIGIN_NOT_ALLOWED,
                "origin_not_allowed",
                "Web pages of that Origin may not call. Add it to "
                f"{self._setting_names.allowed_origins} where they should.",
            )

    def admits(self, origin: str) -> bool:
        """Whether pages of `origin` may call."""
        if ANY in self._origins or origin.lower() in self._origins:
            return True
        parts = _split(origin)
        return parts is not None and parts.scheme in ("http", "https") and is_loopback(parts.hostname or "")

    def _knows(self, host: str) -> bool:
        if host not in self._known:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[host] = self._decides(host)
        return self._known[host]

    def _decides(self, host: str) -> bool:
        parts = _split(f"//{host}")
        if parts is None or "@" in host:
            return False
        name = (parts.hostname or "").rstrip(".")
        return is_loopback(name) or name in self._hosts or host.lower() in self._hosts


def cors_headers(origin: str) -> dict[str, str]:
    """What lets a page of the admitted `origin` read an answer."""
    return {
        hdrs.ACCESS_CONTROL_ALLOW_ORIGIN: origin,
        hdrs.ACCESS_CONTROL_EXPOSE_HEADERS: "WWW-Authenticate",
        hdrs.VARY: "Origin",
    }


def is_preflight(request: web.Request) -> bool:
    """Whether a browser asks for permission; such a request never carries credentials."""
    return (
        request.method == hdrs.METH_OPTIONS
        and hdrs.ORIGIN in request.headers
        and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers
    )


def preflight_answer() -> web.Response:
    """Permission to send what MCP clients send; the Origin was checked before."""
    headers = {
        hdrs.ACCESS_CONTROL_ALLOW_METHODS: "POST, GET, PUT, DELETE",
        hdrs.ACCESS_CONTROL_ALLOW_HEADERS: _ALLOWED_HEADERS,
        hdrs.ACCESS_CONTROL_MAX_AGE: _PREFLIGHT_SECONDS,
    }
    return web.Response(status=204, headers=headers)


def _names(options: HostingOptions) -> frozenset[str]:
    """Accepted Host values in lower case: bare names, and names with a port where so configured."""
    allowed: Iterable[str] = (host.lower() for host in options.allowed_hosts)
    own = [] if _is_wildcard(options.host) else [options.host.lower().strip("[]")]
    public = _split(options.public_url)
    if public is not None and public.hostname:
        own.append(public.hostname)
    # An IPv6 address is written in brackets in a Host header, and read without them by `_knows`.
    return frozenset([*own, *(host.strip("[]") if host.endswith("]") else host for host in allowed)])


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for what is no port
    except ValueError:
        return None
    return parts


def _is_wildcard(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return host == ""
