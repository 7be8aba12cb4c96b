"""Limits for the connections of a server, and the addresses for which they are counted."""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

CONNECTIONS = 4096
HEADER_SECONDS = 10.0
_BACKEND_CONNECTIONS = 512
_OTHER_DESCRIPTORS = 256
"""Descriptors for connections just accepted and not yet counted, surplus connections, files and databases."""
_IPV6_NETWORK = 64


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits for the number of open connections and for the time of a header.

    `per_address` is the limit for one address if `is_bounded` is true for it: programs of this machine share
    one address, and so do all clients of one proxy.
    """

    connections: int = CONNECTIONS
    per_address: int = CONNECTIONS
    header_seconds: float = HEADER_SECONDS
    is_bounded: Callable[[str], bool] = lambda address: not is_loopback(address)


def connections_within_descriptors(wanted: int) -> int:
    """Return the number of connections, up to `wanted`, that this process has descriptors for.

    It raises the soft limit of the process for them. Each connection may need a second one to a backend, and
    some descriptors are reserved for other uses.
    """
    others = _BACKEND_CONNECTIONS + _OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft < wanted + others:
        most = wanted + others if hard == resource.RLIM_INFINITY else min(hard, wanted + others)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        except (OSError, ValueError):  # some systems have a limit below the hard one
            most = soft
        soft = max(soft, most)
    return max(1, min(wanted, max(soft - others, (soft - _OTHER_DESCRIPTORS) // 2)))


def is_loopback(name: str) -> bool:
    """True if a host name or address is a loopback one, judged by its form."""
    try:
        return name == "localhost" or ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False


def owner_of(address: str) -> str:
    """Return the key for counting the connections of an address: for IPv6 its /64 network, since one host has
    it whole.
    """
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Address(int(parsed) >> _IPV6_NETWORK << _IPV6_NETWORK))
