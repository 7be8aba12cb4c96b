"""Subscriptions to resources and tasks, in the form of either era, with one poll for all of them.

| Era | Method | Transport |
|---|---|---|
| 2026-07-28 | `subscriptions/listen`, whose answer is a stream until one side ends it | all |
| handshake versions | `resources/subscribe` and `resources/unsubscribe` | stdio and WebSocket |
| the same, over HTTP | not supported: there is no lasting connection | |

While there are subscriptions, the source is polled for any change, and only after one for each watched
resource. A notification says that a resource is worth reading again, so several changes may be merged into
one, and a slow client still learns of the last state.

A subscription outlives the check of its request: its caller is authenticated again before each report, and
the report depends on the current view of that caller. A resource is polled once for all callers with the same
view.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Hashable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_aiohttp.protocol.caller import Caller, Connected
from mcp_aiohttp.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, SERVER_ERROR, Refusal
from mcp_aiohttp.protocol.tasks import ServedTasks, task_notification

log = logging.getLogger(__name__)

Context = ServerRequestContext[Any, Any]

_Versions = dict[tuple[str, Hashable], Hashable | None]
"""The versions found in one poll, by URI and view."""
_Notification = Callable[[dict[str, Any]], types.ServerNotification]
"""Makes a notification from its `_meta`."""
_UNKNOWN: Hashable = object()
"""The version of a resource that was not polled yet, or could not be."""
_UNAVAILABLE = 503
"""The status of a refusal that is not the caller's fault: its token cannot be checked now."""


@dataclass(frozen=True, slots=True)
class SubscriptionLimits:
    resources: int = 256
    """Maximum number of resources watched at once by all clients; each is polled after a change."""
    of_client: int = 64
    """Maximum number of resources watched by one connection or stream."""
    streams: int = 256
    """Maximum number of open streams."""
    seconds: float = 3.0
    """Time between two polls."""


class WatchedResources(Protocol):
    """The resources that can be watched.

    An exception of any method is logged, and the poll is repeated later.
    """

    async def state(self, uris: Collection[str]) -> Hashable:
        """Return a value that differs whenever any of the resources may have been changed, or removed."""

    def view(self, caller: Caller) -> Hashable:
        """Return a value that is equal for callers with the same view; `MCPError` if there is no access."""

    async def version(self, uri: str, view: Any) -> Hashable | None:
        """Return a value that differs whenever the resource changed in this view; None if it is not in it."""

    async def required(self, context: Context, uri: str) -> Hashable:
        """Return the version in the caller's view. Raises `MCPError` if the resource is not in it."""


class Subscriptions:
    """The subscriptions of one server; `run` polls for changes."""

    def __init__(
        self,
        source: WatchedResources,
        limits: SubscriptionLimits | None = None,
        tasks: ServedTasks | None = None,
    ) -> None:
        self._source = source
        self._tasks = tasks
        self._limits = limits or SubscriptionLimits()
        self._watched: Counter[str] = Counter()
        self._state: Hashable = object()
        self._any = asyncio.Event()
        self._clients: dict[Connected, _Client] = {}
        self._streams: set[_Stream] = set()

    def add_to(self, server: Server[Any]) -> None:
        """Serve the methods on `server`, and announce them; changes of lists are not reported."""
        server.add_request_handler("resources/subscribe", types.SubscribeRequestParams, self.subscribe)
        server.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, self.unsubscribe)
        server.add_request_handler(
            "subscriptions/listen", types.SubscriptionsListenRequestParams, self.listen
        )

        async def discover(context: Context, _params: types.RequestParams) -> types.DiscoverResult:
            # The SDK assumes that a server with streams reports changes of all lists.
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
        """Poll for changes until the block is left."""
        looking = asyncio.create_task(self._look())
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.wait([looking])

    def end_streams(self) -> None:
        """End every stream with its answer."""
        for stream in self._streams:
            stream.close()

    async def listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        wanted = list(dict.fromkeys(params.notifications.resource_subscriptions or ()))
        if len(wanted) > self._limits.of_client:
            raise _TooMany(self._limits.of_client)
        if len(self._streams) >= self._limits.streams:
            limit = self._limits.streams
            words = f"{limit} streams are already open, the maximum number. End one, or try again later."
            raise MCPError(INTERNAL_ERROR, words, {"error_type": "too_many_streams", "limit": limit})
        stream = _Stream(_caller_of(context), self)
        self._streams.add(stream)
        try:
            async with AsyncExitStack() as following:
                for uri in wanted:
                    await self._begin_if_there(context, stream, uri)
                honored = {"resourceSubscriptions": list(stream.versions)}
                if self._tasks is not None and (ids := _task_ids(params.notifications)):
                    followed = self._tasks.followed(context, ids, stream.report_task)
                    honored["taskIds"] = await following.enter_async_context(followed)
                return await stream.serve(context, {name: each for name, each in honored.items() if each})
        finally:
            self._streams.discard(stream)
            stream.drop()

    async def subscribe(self, context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        await self._begin(context, self._client(context), params.uri)
        return types.EmptyResult()

    async def unsubscribe(
        self, context: Context, params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        self._client(context).remove(params.uri)
        return types.EmptyResult()

    async def _begin(self, context: Context, watcher: _Watcher, uri: str) -> None:
        """Report changes of `uri` to `watcher` from now on.
        Raises MCPError: the caller has no such resource, or the limit of subscriptions is reached.
        """
        is_new = uri not in watcher.versions
        if is_new:
            watcher.add(uri, self._limits.of_client)
        try:
            version = await self._source.required(context, uri)
        except BaseException:
            if is_new:
                watcher.remove(uri)
            raise
        if watcher.versions.get(uri) is _UNKNOWN:
            watcher.versions[uri] = version

    async def _begin_if_there(self, context: Context, stream: _Stream, uri: str) -> None:
        """Like `_begin`, but skip a missing resource: the acknowledgement leaves it out."""
        try:
            await self._begin(context, stream, uri)
        except MCPError as error:
            if isinstance(error, _TooMany) or error.error.code != INVALID_PARAMS:
                raise

    def _client(self, context: Context) -> _Client:
        """Return the client at the connection of a request.
        Raises MCPError: the request has no lasting connection.
        """
        caller = _caller_of(context)
        connection = caller.connection
        if connection is None or not connection.is_open:
            words = "Notifications need a lasting connection: use stdio or a WebSocket."
            raise MCPError(SERVER_ERROR, words, {"error_type": "no_subscriptions"})
        client = self._clients.get(connection)
        if client is None:
            client = self._clients[connection] = _Client(caller, self, context.session)

            def end() -> None:
                del self._clients[connection]
                client.end()

            connection.on_end(end)
        return client

    def watch(self, uri: str) -> None:
        """Count one more watcher of `uri`. Raises `MCPError` if the limit is reached."""
        if uri not in self._watched and len(self._watched) >= self._limits.resources:
            raise _TooMany(self._limits.resources)
        self._watched[uri] += 1
        self._any.set()

    def leave(self, uri: str) -> None:
        """Count one watcher of `uri` less."""
        self._watched[uri] -= 1
        if not self._watched[uri]:
            del self._watched[uri]
            if not self._watched:
                self._any.clear()

    async def _look(self) -> None:
        while True:
            await self._any.wait()
            await asyncio.sleep(self._limits.seconds)
            try:
                state = await self._source.state(list(self._watched))
            except Exception:
                log.warning("Subscribed resources cannot be read", exc_info=True)
                continue
            if state == self._state:
                continue
            self._state = state
            versions: _Versions = {}
            for watcher in (*self._clients.values(), *self._streams):
                try:
                    await self._report(watcher, versions)
                except Exception:  # the boundary: one subscriber must not block the rest
                    log.warning("A subscriber cannot be notified", exc_info=True)
                    self._look_again()

    async def _report(self, watcher: _Watcher, versions: _Versions) -> None:
        """Report changes to a watcher; drop it if its caller has lost access."""
        if not watcher.versions:
            return
        try:
            view = self._source.view(await watcher.caller.current())
        except (Refusal, MCPError) as refused:
            if isinstance(refused, Refusal) and refused.status == _UNAVAILABLE:
                self._look_again()
            else:
                log.info("Subscriptions ended: the caller no longer has access")
                watcher.drop()
            return
        for uri in list(watcher.versions):
            if (uri, view) not in versions:
                versions[uri, view] = await self._version(uri, view)
            version, before = versions[uri, view], watcher.versions.get(uri, _UNKNOWN)
            if version is _UNKNOWN or uri not in watcher.versions:
                continue
            watcher.versions[uri] = version
            if before is not _UNKNOWN and version != before:
                await watcher.report(uri)

    async def _version(self, uri: str, view: Hashable) -> Hashable | None:
        try:
            return await self._source.version(uri, view)
        except Exception:  # the boundary: after any error of the source it is polled again
            log.warning("A subscribed resource cannot be read", exc_info=True)
            self._look_again()
            return _UNKNOWN

    def _look_again(self) -> None:
        """Poll all again soon, even without a further change."""
        self._state = object()


def _caller_of(context: Context) -> Caller:
    return context.request if isinstance(context.request, Caller) else Caller()


class _TooMany(MCPError):
    def __init__(self, limit: int) -> None:
        words = f"{limit} resources are already watched, the maximum number. Watch fewer, or try again later."
        super().__init__(INVALID_PARAMS, words, {"error_type": "too_many_subscriptions", "limit": limit})


@dataclass(eq=False)
class _Watcher(ABC):
    """A connection or a stream with subscriptions."""

    caller: Caller
    """The caller at the time of the subscription."""
    subscriptions: Subscriptions
    versions: dict[str, Hashable | None] = field(default_factory=dict, init=False)
    """The last reported version of each watched resource."""

    def add(self, uri: str, limit: int) -> None:
        if len(self.versions) >= limit:
            raise _TooMany(limit)
        self.subscriptions.watch(uri)
        self.versions[uri] = _UNKNOWN

    def remove(self, uri: str) -> None:
        if uri in self.versions:
            del self.versions[uri]
            self.subscriptions.leave(uri)

    def drop(self) -> None:
        """Stop reporting."""
        for uri in list(self.versions):
            self.remove(uri)

    @abstractmethod
    async def report(self, uri: str) -> None:
        """Notify of a change."""


@dataclass(eq=False)
class _Stream(_Watcher):
    """A stream. Of several waiting changes of one resource or task, only the last is sent."""

    due: dict[str, _Notification] = field(default_factory=dict, init=False)
    changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    is_closed: bool = field(default=False, init=False)

    async def serve(self, context: Context, honored: dict[str, Any]) -> types.SubscriptionsListenResult:
        """Acknowledge the subscriptions, and send notifications until the stream is closed."""
        meta: dict[str, Any] = {SUBSCRIPTION_ID_META_KEY: context.request_id}
        only = types.SubscriptionFilter.model_validate(honored)
        acknowledged = types.SubscriptionsAcknowledgedNotificationParams(notifications=only, _meta=meta)
        await context.session.send_notification(
            types.SubscriptionsAcknowledgedNotification(params=acknowledged), context.request_id
        )
        while self.due or not self.is_closed:
            await self.changed.wait()
            self.changed.clear()
            while self.due:
                notification = self.due.pop(next(iter(self.due)))
                await context.session.send_notification(notification(meta), context.request_id)
        return types.SubscriptionsListenResult(_meta=meta)

    def close(self) -> None:
        """End the stream with its answer, after all that is due."""
        self.is_closed = True
        self.changed.set()

    def drop(self) -> None:
        super().drop()
        self.close()

    async def report(self, uri: str) -> None:
        self._send(uri, partial(_resource_updated, uri))

    def report_task(self, task_id: str, task: dict[str, Any]) -> None:
        """Notify of a change of a task."""
        self._send(f"task {task_id}", partial(task_notification, task))

    def _send(self, key: str, notification: _Notification) -> None:
        self.due.pop(key, None)
        self.due[key] = notification
        self.changed.set()


def _resource_updated(uri: str, meta: dict[str, Any]) -> types.ServerNotification:
    return types.ResourceUpdatedNotification(
        params=types.ResourceUpdatedNotificationParams(uri=uri, _meta=meta)
    )


def _task_ids(wanted: types.SubscriptionFilter) -> list[str]:
    """Return `taskIds` of the request, a member that the extension of tasks adds.
    Raises MCPError: `taskIds` is not a list of strings.
    """
    ids = (wanted.model_extra or {}).get("taskIds") or []
    if not isinstance(ids, list) or not all(isinstance(each, str) for each in ids):
        words = "`taskIds` is a list of strings."
        raise MCPError(INVALID_PARAMS, words, {"error_type": "invalid_task_ids"})
    return list(dict.fromkeys(ids))


@dataclass(eq=False)
class _Client(_Watcher):
    """A connection with subscriptions: its notifications are sent one by one, and delay no other client."""

    session: ServerSession
    due: dict[str, None] = field(default_factory=dict, init=False)
    sending: asyncio.Task[None] | None = field(default=None, init=False)

    def remove(self, uri: str) -> None:
        super().remove(uri)
        self.due.pop(uri, None)

    async def report(self, uri: str) -> None:
        self.due[uri] = None
        if self.sending is None or self.sending.done():
            self.sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        while self.due:
            uri = next(iter(self.due))
            del self.due[uri]
            await self.session.send_resource_updated(uri)

    def end(self) -> None:
        self.drop()
        if self.sending is not None:
            self.sending.cancel()
