"""The fast path over HTTP: one object decides whether a request takes it, and answers it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from aiohttp import web

from mcp_aiohttp.fastpath.fast_path import FastPath, FastRequest
from mcp_aiohttp.guard.auth import caller_of
from mcp_aiohttp.protocol.jsonrpc import Request
from mcp_aiohttp.transport.exchange import Channel

Detach = Callable[[Coroutine[Any, Any, web.StreamResponse]], Awaitable[web.StreamResponse]]
"""Runs work that goes on when its client leaves."""


class HttpFastPath:
    """Answers the plain requests of one endpoint."""

    def __init__(self, fast_path: FastPath, detach: Detach, keep_alive: float) -> None:
        self._fast_path = fast_path
        self._detach = detach
        self._keep_alive = keep_alive

    async def serve(self, http: web.Request, request: Request, version: str) -> web.StreamResponse | None:
        """The response to a plain request; None: it is the kernel's."""
        fast_request = self._fast_path.match(request, version, http.headers)
        if fast_request is None:
            return None
        if fast_request.listing is not None:
            body = await self._fast_path.answer(fast_request, caller_of(http))
            return web.Response(body=body, content_type="application/json")
        work = self._call(http, fast_request)
        # As for every request: 2026-07-28 is cancelled with its stream, the handshake versions are not.
        return await (work if fast_request.modern else self._detach(work))

    async def _call(self, http: web.Request, request: FastRequest) -> web.StreamResponse:
        channel = Channel(http, keep_alive=self._keep_alive)
        try:
            body = await self._fast_path.answer(request, caller_of(http))
            if request.modern:
                # One turn of the loop later, as where a task of its own comes between, so that answers that
                # are ready together go out together: waking the client for each costs more than all of this.
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            await channel.close()
            raise
        return await channel.answer(body)
