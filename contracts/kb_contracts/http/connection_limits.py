"""How many connections a server keeps open within its descriptors, and how they are counted."""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

CONNECTIONS = 4096
HEADER_SECONDS = 10.0

_BACKEND_CONNECTIONS = 512
_OTHER_DESCRIPTORS = 256
"""For connections that were just accepted and not yet counted, surplus ones, files and databases."""
_IPV6_NETWORK = 64


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections may be open, and how long a header may take.

    `per_address` of them may be open from one address for which `is_bounded` holds: programs of this machine
    share one, and so do all who come through one proxy.
    """

    connections: int = CONNECTIONS
    per_address: int = CONNECTIONS
    header_seconds: float = HEADER_SECONDS
    is_bounded: Callable[[str], bool] = lambda address: not is_loopback(address)


def connections_within_descriptors(wanted: int) -> int:
    """How many of the `wanted` connections this process has descriptors for; raises its soft limit for them.

    A connection may need another one to a backend, and other descriptors are kept for the rest.
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
    """Whether a host name or address is this machine's own, by its form."""
    try:
        return name == "localhost" or ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False


def owner_of(address: str) -> str:
    """Under what the connections of an address are counted: IPv6 by its network, which one host has whole."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Address(int(parsed) >> _IPV6_NETWORK << _IPV6_NETWORK))
