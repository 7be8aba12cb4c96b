"""`tools/cancel`: ends a task by its id, whichever request or process began it.

A method of its own beside `tools/call`, served where a toolset has tasks that outlive their requests. It
comes as a request, or as a notification, whose sender learns nothing of the outcome.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from kb_server.hosting.calls import new_call, on_behalf_of
from kb_server.tool import INVALID, CancelTask, ToolError
from mcp_aiohttp.protocol.caller import Caller
from mcp_aiohttp.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, SERVER_ERROR

log = logging.getLogger(__name__)

METHOD = "tools/cancel"

_Context = ServerRequestContext[None, Caller]


class _Params(types.RequestParams):
    """On the wire the id is `taskId`."""

    task_id: str


class TaskCancellation:
    """Serves the method over what a toolset does to cancel a task."""

    def __init__(self, cancel: CancelTask) -> None:
        self._cancel = cancel

    def add_to(self, server: Server[None]) -> None:
        """Let `server` take the request."""
        server.add_request_handler(METHOD, _Params, self._on_request)

    async def on_notification(self, params: Mapping[str, Any] | None, caller: Caller) -> None:
        """Cancel as a notification with these `params` wants it; what does not fit or work is logged."""
        try:
            task_id = _Params.model_validate(params or {}, by_name=False).task_id
            await self._run(task_id, params, caller)
        except ValidationError:
            log.info("A notification to cancel a task names none")
        except MCPError as error:
            log.info("A task was not cancelled", extra={"error": error.error.data})

    async def _on_request(self, context: _Context, params: _Params) -> dict[str, Any]:
        await self._run(params.task_id, context.params, context.request or Caller())
        return {}

    async def _run(self, task_id: str, params: Mapping[str, Any] | None, caller: Caller) -> None:
        """Cancel the task.

        Raises:
            MCPError: with the toolset's error, or without words where it broke.
        """
        call = new_call((params or {}).get("_meta"), caller)
        fields = {"correlation_id": call.correlation_id}
        try:
            with on_behalf_of(call):
                await self._cancel(task_id, call)
        except ToolError as error:
            code = INVALID_PARAMS if error.code == INVALID else SERVER_ERROR
            raise MCPError(code, error.message, _data(error)) from None
        except Exception:
            # The boundary, as for a tool: the SDK's handshake loop would put the words on the wire.
            log.exception("Cancelling a task broke", extra=fields)
            raise MCPError(INTERNAL_ERROR, "Internal error") from None
        log.info("Cancelled a task", extra=fields)


def _data(error: ToolError) -> dict[str, Any]:
    return {"error_type": error.code, **({"details": error.details} if error.details else {})}
