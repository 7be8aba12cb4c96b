"""The client's address behind trusted proxies.

A proxy appends the address of its own peer to `X-Forwarded-For`; the elements to the left of it may be
forged. So the header is read from the right, past the trusted proxies, up to the first address of another
host.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address, ip_network

from aiohttp import web

_FORWARDED_FOR = "X-Forwarded-For"


class TrustedProxies:
    def __init__(self, names: Iterable[str] = ()) -> None:
        self._networks = [ip_network(name, strict=False) for name in names]

    def trusts(self, address: str | None) -> bool:
        if not self._networks or not address:
            return False
        try:
            parsed = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        return any(parsed in network for network in self._networks)

    def is_bounded(self, address: str) -> bool:
        """True if the number of connections of an address is limited: it is neither a proxy nor loopback."""
        return not is_loopback(address) and not self.trusts(address)

    def client_of(self, request: web.Request) -> str | None:
        """Return the client's address given by a trusted proxy; None if the peer is not one or gives none."""
        if not self._networks or not self.trusts(request.remote):
            return None
        client = None
        for value in reversed(",".join(request.headers.getall(_FORWARDED_FOR, ())).split(",")):
            address = _without_port(value.strip())
            if address is None:
                break
            client = address
            if not self.trusts(address):
                break
        return client


def is_loopback(name: str) -> bool:
    """True if a host name or address is loopback by its form."""
    try:
        return name == "localhost" or ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _without_port(value: str) -> str | None:
    """Return the address in an element of the header, which may have a port; None if it is invalid."""
    if value.startswith("["):
        value = value[1:].partition("]")[0]
    elif value.count(":") == 1:
        value = value.partition(":")[0]
    try:
        return str(ip_address(value))
    except ValueError:
        return None
