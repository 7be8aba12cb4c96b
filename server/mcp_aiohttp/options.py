"""Options of servers hosted over HTTP: callers, host names, sizes and time-outs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp_aiohttp.authentication import Authenticator, ProtectedResource

MAX_MESSAGE_BYTES = 12 * 1024 * 1024
STALLED_SECONDS = 60.0
"""Maximum time that a client may leave an answer unread before it counts as gone, in seconds."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Maximum size of a request body, in bytes, and time to receive it, in seconds."""

    max_bytes: int = MAX_MESSAGE_BYTES
    read_timeout: float = 20.0
    """Maximum time between two pieces."""
    total: float = 120.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """Maximum calls in flight on one connection, and their size; a call ends when its answer is written."""

    calls: int = 128
    bytes: int = 4 * MAX_MESSAGE_BYTES
    """Total size of the messages that started the calls, in bytes."""


@dataclass(frozen=True, slots=True)
class SocketLimits:
    bounds: Bounds = field(default_factory=Bounds)
    heartbeat: float = 120.0
    """Seconds of silence before a ping; the peer has half as long to answer it.

    The ping waits behind the output that is being sent: a peer that reads slowly needs the time.
    """
    open: int = 2048
    """Maximum number of open WebSockets, on all endpoints together."""
    per_address: int = 256
    """Maximum number of open WebSockets from one address; loopback and trusted proxies are exempt."""
    owner_of: Callable[[str], str] = str
    """Returns the name under which the WebSockets of an address are counted, such as its network."""


@dataclass(frozen=True, slots=True)
class SettingNames:
    """The names of options in messages to callers and operators."""

    key: str = "key"
    allowed_hosts: str = "allowed_hosts"
    allowed_origins: str = "allowed_origins"


def _nothing(_error_type: str, _address: str) -> None:
    """Count no refusals."""


@dataclass(frozen=True, slots=True)
class HostingOptions:
    """The options of one application. The defaults serve this machine only, without authentication."""

    key: str = ""
    """The bearer key that callers must send; empty: no key is needed."""
    authenticator: Authenticator | None = None
    """Maps tokens to identities, in place of the one key."""
    resource: ProtectedResource | None = None
    """Tells clients how to get a token; None: they are configured with theirs."""
    on_refused: Callable[[str, str], None] = _nothing
    """Called for each request that is refused before it is served, with the kind of error and the address."""
    host: str = "127.0.0.1"
    """The address listened on; the check of Host accepts it."""
    public_url: str = ""
    """The URL by which callers reach the server, if it differs from the address listened on."""
    allowed_hosts: Sequence[str] = ()
    """Values of Host accepted beside loopback; `*`: any."""
    allowed_origins: Sequence[str] = ()
    """Values of Origin accepted beside loopback; `*`: any."""
    trusted_proxies: Sequence[str] = ()
    """Addresses and networks of proxies whose X-Forwarded-For is trusted."""
    body: BodyLimits = field(default_factory=BodyLimits)
    sockets: SocketLimits = field(default_factory=SocketLimits)
    keep_alive: float = 15.0
    """Time that an answer may stay silent before it becomes a stream with comments in it, in seconds."""
    names: SettingNames = field(default_factory=SettingNames)
