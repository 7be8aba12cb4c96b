"""Whose word is taken for the address that a request comes from.

A proxy appends the address of its own peer to `X-Forwarded-For`; what stands left of that anybody may have
written. So the header is read from the right, past the proxies that are trusted, up to the first other one.
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
        """Whether the connections of an address are bounded: it is neither a proxy nor this machine."""
        return not is_loopback(address) and not self.trusts(address)

    def client_of(self, request: web.Request) -> str | None:
        """The address for which a trusted proxy asks; None where the peer is none, or does not say."""
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
    """Whether a host name or address is this machine's own, by its form."""
    try:
        return name == "localhost" or ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _without_port(value: str) -> str | None:
    """The address in an element of the header, which some write with a port; None where it is none."""
    if value.startswith("["):
        value = value[1:].partition("]")[0]
    elif value.count(":") == 1:
        value = value.partition(":")[0]
    try:
        return str(ip_address(value))
    except ValueError:
        return None
