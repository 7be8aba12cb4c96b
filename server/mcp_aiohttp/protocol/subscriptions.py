"""Subscriptions to resources, in the form of either era, over one look at what changed for all of them.

| Era | How | Where |
|---|---|---|
| 2026-07-28 | `subscriptions/listen`, whose answer is a stream until one side ends it | everywhere |
| handshake versions | `resources/subscribe` and `resources/unsubscribe` | stdio and WebSocket |
| the same, over HTTP | not at all: there is no connection that lasts | |

While somebody watches something, the source is asked from time to time whether anything changed at all, and
only then about each resource that is watched. A notification says that a resource is worth reading again, so
that several changes may make one, and a client that reads slowly misses none in the end.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_aiohttp.protocol.caller import Caller, Connected
from mcp_aiohttp.protocol.jsonrpc import INVALID_PARAMS, SERVER_ERROR

log = logging.getLogger(__name__)

Context = ServerRequestContext[Any, Any]


@dataclass(frozen=True, slots=True)
class SubscriptionLimits:
    resources: int = 256
    """Watched at once, by all clients of a server together; each is looked at when anything changed."""
    of_client: int = 64
    """Of these, those of one connection or stream."""
    streams: int = 256
    """Open at once."""
    seconds: float = 3.0
    """Between two looks."""


class WatchedResources(Protocol):
    """What can be watched. What any method raises is logged, and asked again later."""

    async def state(self) -> Hashable:
        """Another value whenever any resource may have changed, come or gone."""

    async def version(self, uri: str) -> Hashable | None:
        """Another value whenever this resource changed; None where there is none."""

    async def required(self, context: Context, uri: str) -> None:
        """Raise `MCPError` where there is no such resource for the caller."""


class Subscriptions:
    """Who watches what on one server; `run` looks for changes."""

    def __init__(self, source: WatchedResources, limits: SubscriptionLimits | None = None) -> None:
        self._source = source
        self._limits = limits or SubscriptionLimits()
        self._watched: Counter[str] = Counter()
        self._versions: dict[str, Hashable | None] = {}
        self._state: Hashable = object()
        self._any = asyncio.Event()
        self._bus = InMemorySubscriptionBus()
        self._listen = ListenHandler(self._bus, max_subscriptions=self._limits.streams)
        self._clients: dict[Connected, _Client] = {}

    def add_to(self, server: Server[Any]) -> None:
        """Serve the methods on `server`, and announce them; changes of lists are not reported."""
        server.add_request_handler("resources/subscribe", types.SubscribeRequestParams, self.subscribe)
        server.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, self.unsubscribe)
        server.add_request_handler(
            "subscriptions/listen", types.SubscriptionsListenRequestParams, self.listen
        )

        async def discover(context: Context, _params: types.RequestParams) -> types.DiscoverResult:
            # The SDK takes it that whoever serves streams reports everything on them.
            capabilities = server.get_capabilities(protocol_version=context.protocol_version)
            for each in (capabilities.tools, capabilities.prompts, capabilities.resources):
                if each is not None:
                    each.list_changed = False
            return types.DiscoverResult(
                supported_versions=list(MODERN_PROTOCOL_VERSIONS),
                capabilities=capabilities,
                instructions=server.instructions,
            )

        server.add_request_handler("server/discover", types.RequestParams, discover)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Look for changes until the block is left."""
        looking = asyncio.create_task(self._look())
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.wait([looking])

    def end_streams(self) -> None:
        """Let every stream end with its answer."""
        self._listen.close()

    async def listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        wanted = list(dict.fromkeys(params.notifications.resource_subscriptions or ()))
        if len(wanted) > self._limits.of_client:
            raise _too_many(self._limits.of_client)
        uris = [uri for uri in wanted if await self._is_there(context, uri)]
        only = types.SubscriptionFilter(resource_subscriptions=uris)
        with self._watching(uris):
            await self._note(uris)
            return await self._listen(context, params.model_copy(update={"notifications": only}))

    async def subscribe(self, context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        client = self._client(context)
        await self._source.required(context, params.uri)
        client.add(params.uri, self._limits.of_client)
        await self._note([params.uri])
        return types.EmptyResult()

    async def unsubscribe(
        self, context: Context, params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        self._client(context).remove(params.uri)
        return types.EmptyResult()

    async def _is_there(self, context: Context, uri: str) -> bool:
        """Whether the caller has such a resource; the acknowledgement leaves the others out."""
        try:
            await self._source.required(context, uri)
        except MCPError as error:
            if error.error.code != INVALID_PARAMS:
                raise
            return False
        return True

    def _client(self, context: Context) -> _Client:
        """The client at the connection of a request.

        Raises:
            MCPError: the request came on its own.
        """
        caller = context.request
        connection = caller.connection if isinstance(caller, Caller) else None
        if connection is None:
            words = "No connection lasts here that could carry a notification: use stdio or a WebSocket."
            raise MCPError(SERVER_ERROR, words, {"error_type": "no_subscriptions"})
        client = self._clients.get(connection)
        if client is None:
            client = self._clients[connection] = _Client(context.session, self)

            def end() -> None:
                del self._clients[connection]
                client.end()

            connection.on_end(end)
        return client

    @contextmanager
    def _watching(self, uris: Iterable[str]) -> Iterator[None]:
        watched: list[str] = []
        try:
            for uri in uris:
                self.watch(uri)
                watched.append(uri)
            yield
        finally:
            for uri in watched:
                self.leave(uri)

    def watch(self, uri: str) -> None:
        """Count one more that watches `uri`. Raises `MCPError` where too much is watched."""
        if uri not in self._watched and len(self._watched) >= self._limits.resources:
            raise _too_many(self._limits.resources)
        self._watched[uri] += 1
        self._any.set()

    def leave(self, uri: str) -> None:
        """One less watches `uri`."""
        self._watched[uri] -= 1
        if not self._watched[uri]:
            del self._watched[uri]
            self._versions.pop(uri, None)
            if not self._watched:
                self._any.clear()

    async def _note(self, uris: Iterable[str]) -> None:
        """Keep what the resources are like now, from which on changes are reported."""
        for uri in uris:
            if uri not in self._versions:
                version = await self._version(uri)
                if uri in self._watched:
                    self._versions.setdefault(uri, version)

    async def _version(self, uri: str) -> Hashable | None:
        try:
            return await self._source.version(uri)
        except Exception:  # the boundary: whatever the source met, it is asked again
            log.warning("A resource that is watched cannot be looked at", exc_info=True)
            return _UNKNOWN

    async def _look(self) -> None:
        while True:
            await self._any.wait()
            await asyncio.sleep(self._limits.seconds)
            try:
                state = await self._source.state()
            except Exception:
                log.warning("Resources that are watched cannot be looked at", exc_info=True)
                continue
            if state == self._state:
                continue
            self._state = state
            for uri in list(self._watched):
                await self._compare(uri)

    async def _compare(self, uri: str) -> None:
        version = await self._version(uri)
        if version is _UNKNOWN:
            self._state = object()  # look again, whether or not anything else changes
            return
        before = self._versions.get(uri, version)
        if uri not in self._watched:
            return
        self._versions[uri] = version
        if version == before or before is _UNKNOWN:
            return
        await self._bus.publish(ResourceUpdated(uri))
        for client in list(self._clients.values()):
            client.report(uri)


def _too_many(limit: int) -> MCPError:
    words = f"{limit} resources are watched already, as many as may be. Watch fewer, or try again later."
    return MCPError(INVALID_PARAMS, words, {"error_type": "too_many_subscriptions", "limit": limit})


_UNKNOWN: Hashable = object()
"""The version of a resource that could not be looked at."""


@dataclass(eq=False)
class _Client:
    """A connection with subscriptions: its notifications leave one by one, and hold up nobody else's."""

    session: ServerSession
    subscriptions: Subscriptions
    uris: set[str] = field(default_factory=set)
    due: dict[str, None] = field(default_factory=dict)
    sending: asyncio.Task[None] | None = None

    def add(self, uri: str, limit: int) -> None:
        if uri in self.uris:
            return
        if len(self.uris) >= limit:
            raise _too_many(limit)
        self.subscriptions.watch(uri)
        self.uris.add(uri)

    def remove(self, uri: str) -> None:
        if uri in self.uris:
            self.uris.discard(uri)
            self.due.pop(uri, None)
            self.subscriptions.leave(uri)

    def report(self, uri: str) -> None:
        if uri not in self.uris:
            return
        self.due[uri] = None
        if self.sending is None or self.sending.done():
            self.sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        while self.due:
            uri = next(iter(self.due))
            del self.due[uri]
            await self.session.send_resource_updated(uri)

    def end(self) -> None:
        for uri in list(self.uris):
            self.remove(uri)
        if self.sending is not None:
            self.sending.cancel()
