"""The requests under way: which are answered while connections are short, and what a stop does to them.

    signal to stop ─▶ listen no more ─▶ bodies may arrive ─▶ what has not arrived is refused ─▶ clean up

A request tells the table of connections that its own is ACTIVE, and IDLE after it. Where there is no room for
it, it is refused. Once a runner is cleaned up aiohttp drops what arrives: a request whose body is still
arriving would be waited for in vain, and then cut. Whoever sent it would not know whether to send it again;
an answer says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from kb_contracts.http.connections import Connection, State

RETRY_SECONDS = 5
"""How long a caller is asked to wait before it tries again."""

ARRIVING_SECONDS = 5.0
"""How long bodies may still arrive once a server has to stop."""

LINGER_SECONDS = 2.0
"""How long a runner reads on in a body that was refused: a connection closed while its sender still sends is
reset, and the answer may be lost. A stop waits as long for what such a body has begun to be undone."""


class Admission:
    """Stands before all else in one application that is served by a `ConnectionTable`."""

    def __init__(
        self,
        no_room: Callable[[web.Request], web.Response],
        unfinished: Callable[[web.Request], web.Response],
        *,
        is_probe: Callable[[web.Request], bool],
        client_of: Callable[[web.Request], str | None] | None = None,
        is_futile: Callable[[web.Request], bool] = lambda _request: False,
    ) -> None:
        """`no_room` and `unfinished` make the responses to what is refused.

        A probe is answered where there is no room, too. `client_of` gives the address for which a proxy sends
        a request. A futile one is refused at once when the server stops: what would come of it ends with the
        server anyway.
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
        """Stand before all that `app` serves, also for `stop_listening`."""
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
        """The request is being answered from now on; False where there is no room for it."""
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
        """Return when no body arrives any more; those that have not arrived in `seconds` are refused."""
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
    """Take no more connections and let bodies arrive; then the runner can be cleaned up."""
    for site in list(runner.sites):
        await site.stop()
    await runner.app[_ADMISSION].settle()
