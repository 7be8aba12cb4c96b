"""Requests whose bodies are still arriving when a server has to stop.

    signal to stop ─▶ listen no more ─▶ bodies may arrive ─▶ what has not arrived is refused ─▶ clean up

Once a runner is cleaned up aiohttp drops what arrives: such a request would be waited for in vain, and then
cut. Whoever sent it would not know whether to send it again; an answer says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

ARRIVING_SECONDS = 5.0
"""How long bodies may still arrive once a server has to stop."""

LINGER_SECONDS = 2.0
"""How long a runner reads on in a body that was refused: a connection closed while its sender still sends is
reset, and the answer may be lost. A stop waits as long for what such a body has begun to be undone."""


class ArrivingBodies:
    """Knows the requests of one application whose bodies are arriving; `middleware` stands before all others.

    `refusal` makes the answer of one that is refused. One that is `futile` is refused at once: what would
    come of it ends with the server anyway.
    """

    def __init__(
        self,
        refusal: Callable[[web.Request], web.Response],
        *,
        futile: Callable[[web.Request], bool] = lambda _request: False,
    ) -> None:
        self._refusal = refusal
        self._futile = futile
        self._arriving: dict[asyncio.Task[Any], web.Request] = {}
        self._refused: set[asyncio.Task[Any]] = set()
        self._changed = asyncio.Event()

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Serve the request; refuse it where it is cut off while its body arrives."""
        task = asyncio.current_task()
        if request.content.is_eof() or task is None:
            return await handler(request)
        self._arriving[task] = request
        request.content.on_eof(lambda: self._arrived(task))
        try:
            return await handler(request)
        except asyncio.CancelledError:
            if task not in self._refused:
                raise
            task.uncancel()
            response = self._refusal(request)
            response.force_close()
            return response
        finally:
            self._refused.discard(task)
            self._arrived(task)

    async def settle(self, seconds: float = ARRIVING_SECONDS) -> None:
        """Return when no body arrives any more; those that have not arrived in `seconds` are refused."""
        self._cut([task for task, request in self._arriving.items() if self._futile(request)])
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


_ARRIVING = web.AppKey("_ARRIVING", ArrivingBodies)


def watch(app: web.Application, bodies: ArrivingBodies) -> None:
    """Let `bodies` stand before all that `app` serves, for `stop_listening`."""
    app[_ARRIVING] = bodies
    app.middlewares.insert(0, bodies.middleware)


async def stop_listening(runner: web.AppRunner) -> None:
    """Take no more connections and let bodies arrive; then the runner can be cleaned up."""
    for site in list(runner.sites):
        await site.stop()
    await runner.app[_ARRIVING].settle()
