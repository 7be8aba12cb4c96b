"""The fast path on a connection that carries many calls: plain calls pass by the loop of the SDK.

What the loop does for a call is done here in the same way: it runs beside others, ends without an answer
where the client cancels it, and where the connection is closed during it, with an answer that says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
from anyio.abc import TaskGroup
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.inbound import MCP_METHOD_HEADER, MCP_NAME_HEADER
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params
from mcp_types import CONNECTION_CLOSED

from mcp_aiohttp.fastpath.fast_path import FastPath, FastRequest
from mcp_aiohttp.protocol.caller import Caller
from mcp_aiohttp.protocol.jsonrpc import Notification, Request, RequestId, error_bytes

Write = Callable[[bytes], Awaitable[None]]
"""Writes a message; raises `anyio.BrokenResourceError` where nobody reads any more."""

_LAST_WRITE_SECONDS = 1.0


class SessionFastPath:
    """Runs the plain calls of one connection."""

    def __init__(self, fast_path: FastPath, caller: Caller, write: Write, tasks: TaskGroup) -> None:
        self.version: str | None = None
        """The version that the connection speaks; None until that is settled."""
        self._fast_path = fast_path
        self._caller = caller
        self._write = write
        self._tasks = tasks
        self._running: dict[RequestId, anyio.CancelScope] = {}

    def start(self, request: Request, on_end: Callable[[RequestId], None]) -> bool:
        """Run the call if it is a plain one; False: it is for the SDK's loop.

        `on_end` is called with its id when it is over, answered or not.
        """
        if self.version is None:
            return False
        # There are no headers here that could disagree with the message.
        name = (request.params or {}).get("name")
        headers = {MCP_METHOD_HEADER: request.method, MCP_NAME_HEADER: name if type(name) is str else ""}
        fast_request = self._fast_path.match(request, self.version, headers)
        if fast_request is None:
            return False
        # Known before it runs: the message that cancels it may have been read already.
        scope = self._running[coerce_request_id(request.id)] = anyio.CancelScope()
        self._tasks.start_soon(self._run, fast_request, scope, on_end)
        return True

    def cancel(self, notification: Notification) -> None:
        """Cancel the call that a `notifications/cancelled` names, where it runs here."""
        request_id = cancelled_request_id_from_params(notification.params)
        # A client may write an id as a number here and as a string there; the SDK has one key for both.
        if request_id is not None and (scope := self._running.get(coerce_request_id(request_id))) is not None:
            scope.cancel()

    async def _run(
        self, request: FastRequest, scope: anyio.CancelScope, on_end: Callable[[RequestId], None]
    ) -> None:
        answering = False
        try:
            with suppress(anyio.BrokenResourceError), scope:
                body = await self._fast_path.answer(request, self._caller)
                answering = True
                await self._write(body)
        except anyio.get_cancelled_exc_class():
            if not answering:  # a second answer would be worse than none
                with (
                    anyio.move_on_after(_LAST_WRITE_SECONDS, shield=True),
                    suppress(anyio.BrokenResourceError),
                ):
                    await self._write(error_bytes(request.id, CONNECTION_CLOSED, "Connection closed"))
            raise
        finally:
            if self._running.get(key := coerce_request_id(request.id)) is scope:
                del self._running[key]
            on_end(request.id)
