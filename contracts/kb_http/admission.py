"""Admission of requests: when connections are short, and when the server stops.

    signal to stop ─▶ stop listening ─▶ wait for bodies ─▶ refuse incomplete requests ─▶ clean up

Each request marks its connection ACTIVE in the table of connections, and IDLE afterwards. Without room for
it, the request is refused. Once a runner is cleaned up, aiohttp drops arriving data: it would wait in vain
for the rest of a body, and then close the connection. The sender would not know whether to send the request
again; a refusal says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from kb_http.connections import Connection, State

RETRY_SECONDS = 5
"""Time after which a refused caller is asked to try again, in seconds."""

ARRIVING_SECONDS = 5.0
"""Maximum time for bodies to arrive once a server stops, in seconds."""

LINGER_SECONDS = 2.0
"""Time that a runner reads on in a refused body, in seconds. A connection that is closed while its peer still
sends is reset, and the response may be lost. A stop allows the same time to undo partial work for such a
body.
"""


class Admission:
    """The outermost middleware of an application that is served by a `ConnectionTable`."""

    def __init__(
        self,
        no_room: Callable[[web.Request], web.Response],
        unfinished: Callable[[web.Request], web.Response],
        *,
        is_probe: Callable[[web.Request], bool],
        client_of: Callable[[web.Request], str | None] | None = None,
        is_futile: Callable[[web.Request], bool] = lambda _request: False,
    ) -> None:
        """`no_room` and `unfinished` make the responses to refused requests.

        A probe is answered even without room. `client_of` returns the address for which a proxy sent a
        request. A request for which `is_futile` is true is refused at once when the server stops: its result
        would be lost with the server.
        """
        self._no_room = no_room
        self._unfinished = unfinished
        self._is_probe = is_probe
        self._client_of = client_of
        self._is_futile = is_futile
        self._arriving: dict[asyncio.Task[Any], web.Request] = {}
        self._refused: set[asyncio.Task[Any]] = set()
        self._changed = asyncio.Event()

    def install(self, app: web.Application) -> None:
        """Become the outermost middleware of `app`, and make `stop_listening` find it."""
        app[_ADMISSION] = self
        app.middlewares.insert(0, self._middleware)

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        transport = request.transport
        connection = transport.get_protocol() if transport is not None else None
        has_room = not isinstance(connection, Connection) or self._begin(connection, request)
        task = None if request.content.is_eof() else asyncio.current_task()
        if task is not None:
            self._arriving[task] = request
            request.content.on_eof(partial(self._arrived, task))
        try:
            if has_room or self._is_probe(request):
                response = await handler(request)
            else:
                response = self._no_room(request)
        except asyncio.CancelledError:
            if task is None or task not in self._refused:
                raise
            task.uncancel()
            response = self._unfinished(request)
            response.force_close()
        finally:
            if task is not None:
                self._refused.discard(task)
                self._arrived(task)
            if isinstance(connection, Connection):
                if connection.client is not None:
                    connection.table.release_client(connection)
                if connection.state is not State.CLOSED:
                    connection.state = State.IDLE
                    if not connection.surplus:
                        connection.table.idle[connection] = None
        if not has_room:
            response.force_close()
        return response

    def _begin(self, connection: Connection, request: web.Request) -> bool:
        """Mark the connection ACTIVE; False if there is no room for its request."""
        if connection.state is State.CLOSED:
            return True
        table = connection.table
        table.awaiting.pop(connection, None)
        table.idle.pop(connection, None)
        connection.state = State.ACTIVE
        if connection.surplus:
            table.promote(connection)
        client = self._client_of(request) if self._client_of is not None else None
        if client is not None and not table.count_client(connection, client):
            return False
        return not connection.surplus

    async def settle(self, seconds: float = ARRIVING_SECONDS) -> None:
        """Return when no body is arriving; refuse requests whose body has not arrived within `seconds`."""
        self._cut([task for task, request in self._arriving.items() if self._is_futile(request)])
        await self._until(lambda: not self._arriving, seconds)
        self._cut(list(self._arriving))
        await self._until(lambda: not self._refused, LINGER_SECONDS)

    def _cut(self, tasks: list[asyncio.Task[Any]]) -> None:
        for task in tasks:
            del self._arriving[task]
            self._refused.add(task)
            task.cancel()

    def _arrived(self, task: asyncio.Task[Any]) -> None:
        self._arriving.pop(task, None)
        self._changed.set()

    async def _until(self, holds: Callable[[], bool], seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()


_ADMISSION = web.AppKey("_ADMISSION", Admission)


async def stop_listening(runner: web.AppRunner) -> None:
    """Stop accepting connections and let bodies arrive; then the runner can be cleaned up."""
    for site in list(runner.sites):
        await site.stop()
    await runner.app[_ADMISSION].settle()
