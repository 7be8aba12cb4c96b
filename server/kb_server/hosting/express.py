"""The lane on a connection that carries many calls: plain calls pass by the loop of the SDK's.

What the loop does for a call is done here in the same way: it runs beside others, ends where the client gives
it up, without an answer, and where the connection is closed on it, with one that says so.
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

from kb_server.hosting.caller import Caller
from kb_server.hosting.jsonrpc import Notification, Request, RequestId, error_bytes
from kb_server.hosting.lane import Lane, Passage

Write = Callable[[bytes], Awaitable[None]]
"""Writes a message; raises `anyio.BrokenResourceError` where nobody reads any more."""

_LAST_WRITE_SECONDS = 1.0


class Express:
    """Runs the calls of one connection that the lane takes."""

    def __init__(self, lane: Lane, caller: Caller, write: Write, tasks: TaskGroup) -> None:
        self.version: str | None = None
        """The version that the connection speaks; None until that is settled."""
        self._lane = lane
        self._caller = caller
        self._write = write
        self._tasks = tasks
        self._running: dict[RequestId, anyio.CancelScope] = {}

    def admits(self, request: Request) -> Passage | None:
        """The way of `request`; None: it is for the loop."""
        if self.version is None:
            return None
        # There are no headers here that could disagree with the message.
        name = (request.params or {}).get("name")
        headers = {MCP_METHOD_HEADER: request.method, MCP_NAME_HEADER: name if type(name) is str else ""}
        return self._lane.admits(request, self.version, headers)

    def begin(self, passage: Passage, ended: Callable[[RequestId], None]) -> None:
        """Run the call; `ended` is called with its id when it is over, answered or not."""
        # Known before it runs: the message that gives it up may have been read already.
        scope = self._running[_key(passage.id)] = anyio.CancelScope()
        self._tasks.start_soon(self._run, passage, scope, ended)

    def give_up(self, notification: Notification) -> None:
        """Cancel the call that a `notifications/cancelled` names, where it runs here."""
        request_id = cancelled_request_id_from_params(notification.params)
        if request_id is not None and (scope := self._running.get(_key(request_id))) is not None:
            scope.cancel()

    async def _run(
        self, passage: Passage, scope: anyio.CancelScope, ended: Callable[[RequestId], None]
    ) -> None:
        answering = False
        try:
            with suppress(anyio.BrokenResourceError), scope:
                body = await self._answer(passage)
                answering = True
                await self._write(body)
        except anyio.get_cancelled_exc_class():
            if not answering:  # a second answer would be worse than none
                await self._closed_on(passage.id)
            raise
        finally:
            if self._running.get(key := _key(passage.id)) is scope:
                del self._running[key]
            ended(passage.id)

    async def _answer(self, passage: Passage) -> bytes:
        if passage.listing is not None:
            return self._lane.listed(passage)
        return await self._lane.answer(passage, self._caller)

    async def _closed_on(self, request_id: RequestId) -> None:
        with anyio.move_on_after(_LAST_WRITE_SECONDS, shield=True), suppress(anyio.BrokenResourceError):
            await self._write(error_bytes(request_id, CONNECTION_CLOSED, "Connection closed"))


def _key(request_id: RequestId) -> RequestId:
    """One key for an id that a client writes as a number here and as a string there, as the SDK has it."""
    return coerce_request_id(request_id)
