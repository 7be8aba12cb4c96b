"""How servers are hosted over HTTP: who may call, by which names, how much, and how long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp_aiohttp.authentication import Authenticator, ProtectedResource

MAX_MESSAGE_BYTES = 12 * 1024 * 1024
STALLED_SECONDS = 60.0
"""How long a client may leave an answer unread before it counts as gone."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """How much body there may be (bytes), and how long it may take (seconds)."""

    max_bytes: int = MAX_MESSAGE_BYTES
    silence: float = 20.0
    """Between two pieces."""
    total: float = 120.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """What may be in flight on one connection. A call is, until its answer has been written."""

    calls: int = 128
    bytes: int = 4 * MAX_MESSAGE_BYTES
    """Of the messages that started them."""


@dataclass(frozen=True, slots=True)
class SocketLimits:
    bounds: Bounds = field(default_factory=Bounds)
    heartbeat: float = 120.0
    """Seconds of silence before a ping; the peer has half as long to answer it.

    The ping waits behind what is being sent: a peer that reads slowly needs the time.
    """
    open: int = 2048
    """WebSockets open at once, on all endpoints together."""
    per_address: int = 256
    """Of these, those from one address, but for this machine's and trusted proxies'."""
    owner_of: Callable[[str], str] = str
    """Under which name the WebSockets of an address are counted, such as its network."""


@dataclass(frozen=True, slots=True)
class SettingNames:
    """What messages to callers and operators call the options that they name."""

    key: str = "key"
    allowed_hosts: str = "allowed_hosts"
    allowed_origins: str = "allowed_origins"


def _nothing(_error_type: str, _address: str) -> None:
    """Count no refusals."""


@dataclass(frozen=True, slots=True)
class HostingOptions:
    """The options of one application. Without any it serves this machine, and everybody on it."""

    key: str = ""
    """The bearer key that callers must send; empty: none."""
    authenticator: Authenticator | None = None
    """Tells whose tokens are, in place of the one key."""
    resource: ProtectedResource | None = None
    """Where tokens can be had; None: clients are not told, and have theirs from elsewhere."""
    on_refused: Callable[[str, str], None] = _nothing
    """Learns of each request that is refused before it is served: the kind of error, and the address."""
    host: str = "127.0.0.1"
    """The address that is listened on; by it Host is checked."""
    public_url: str = ""
    """The URL that callers reach the server by, where that is another."""
    allowed_hosts: Sequence[str] = ()
    """Values of Host accepted beside loopback; `*`: any."""
    allowed_origins: Sequence[str] = ()
    """Values of Origin accepted beside loopback; `*`: any."""
    trusted_proxies: Sequence[str] = ()
    """Addresses and networks of proxies whose X-Forwarded-For counts."""
    body: BodyLimits = field(default_factory=BodyLimits)
    sockets: SocketLimits = field(default_factory=SocketLimits)
    keep_alive: float = 15.0
    """Seconds that an answer may stay silent before it becomes a stream with comments in it."""
    names: SettingNames = field(default_factory=SettingNames)
