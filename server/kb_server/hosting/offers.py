"""Resources, prompts, completion and tasks of a toolset, on a server of the official SDK."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import mcp_types as types
import msgspec
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError

from kb_contracts.access.keys import ANYBODY
from kb_contracts.access.reach import Access, Reach
from kb_server.access.grants import EVERYBODY, GRANT, Grant, grant_of
from kb_server.document_marks import META
from kb_server.engine_client.errors import EngineFault
from kb_server.engine_faults import tool_error
from kb_server.hosting.calls import admit, new_call, on_behalf_of
from kb_server.offers import Completion, Prompt, Resources, ResourceText, Tasks
from kb_server.tool import INVALID, MISSING, OFFERS, ToolError, Toolset
from mcp_aiohttp.protocol.caller import Caller
from mcp_aiohttp.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, SERVER_ERROR
from mcp_aiohttp.protocol.tasks import TaskState

log = logging.getLogger(__name__)

T = TypeVar("T")
Context = ServerRequestContext[Any, Any]
_COMPLETE = {"resultType": "complete"}
_CALLERS_FAULT = frozenset(
    {
        "resource_not_found",
        INVALID,
        MISSING,
        "job_not_found",
        "job_finished",
        "task_not_found",
        "task_finished",
    }
)


def add_offers(server: Server[None], toolset: Toolset) -> None:
    """Serve the resources, prompts and tasks of `toolset`; only existing ones are announced."""
    offers = _Offers(toolset)
    if toolset.resources is not None:
        server.add_request_handler("resources/list", types.PaginatedRequestParams, offers.list_resources)
        server.add_request_handler(
            "resources/templates/list", types.PaginatedRequestParams, offers.list_templates
        )
        server.add_request_handler("resources/read", types.ReadResourceRequestParams, offers.read_resource)
    if toolset.prompts or toolset.prompts_list_changed is not None:
        server.add_request_handler("prompts/list", types.PaginatedRequestParams, offers.list_prompts)
    if toolset.prompts:
        server.add_request_handler("prompts/get", types.GetPromptRequestParams, offers.get_prompt)
    if toolset.resources is not None or toolset.completer is not None:
        server.add_request_handler("completion/complete", types.CompleteRequestParams, offers.complete)


class _Offers:
    def __init__(self, toolset: Toolset) -> None:
        self._toolset = toolset
        self._owner = toolset.part_of(OFFERS)
        self._prompts = {prompt.name: prompt for prompt in toolset.prompts}

    @property
    def _resources(self) -> Resources:
        assert self._toolset.resources is not None, "it is not served without"
        return self._toolset.resources

    async def list_resources(self, context: Context, params: types.PaginatedRequestParams) -> dict[str, Any]:
        page = self._resources.page
        found, cursor = await answered(context, lambda: page(params.cursor), self._owner)
        following = {} if cursor is None else {"nextCursor": cursor}
        return {"resources": msgspec.to_builtins(found), **following, **_COMPLETE, "_meta": dict(META)}

    async def list_templates(
        self, _context: Context, _params: types.PaginatedRequestParams
    ) -> dict[str, Any]:
        return {"resourceTemplates": msgspec.to_builtins(self._resources.templates), **_COMPLETE}

    async def read_resource(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> dict[str, Any]:
        content = await answered(context, lambda: self._resources.read(params.uri), self._owner)
        return {"contents": [_content(content)], **_COMPLETE}

    async def list_prompts(self, context: Context, _params: types.PaginatedRequestParams) -> dict[str, Any]:
        prompts = self._toolset.prompts if self._may_use(context) else ()
        return {"prompts": [_prompt(each) for each in prompts], **_COMPLETE}

    async def get_prompt(self, context: Context, params: types.GetPromptRequestParams) -> dict[str, Any]:
        if not self._may_use(context):
            words = f"This key may not use the toolset {self._owner}. Use a key that includes it."
            raise MCPError(SERVER_ERROR, words, {"error_type": "forbidden"})
        prompt = self._prompts.get(params.name)
        if prompt is None:
            names = ", ".join(self._prompts)
            words = f"Unknown prompt: {params.name[:64]}. The prompts are {names}."
            raise MCPError(INVALID_PARAMS, words, {"error_type": "unknown_prompt"})
        given = params.arguments or {}
        known = [argument.name for argument in prompt.arguments]
        for argument in prompt.arguments:
            if argument.required and not given.get(argument.name, "").strip():
                words = (
                    f"The prompt {prompt.name} needs the argument `{argument.name}`: {argument.description}."
                )
                raise MCPError(INVALID_PARAMS, words, {"error_type": "missing_required_parameter"})
        if unknown := next((name for name in given if name not in known), None):
            words = f"There is no argument `{unknown[:64]}`. It takes {', '.join(known)}."
            raise MCPError(INVALID_PARAMS, words, {"error_type": "invalid_parameter"})
        message = {"role": "user", "content": {"type": "text", "text": prompt.render(given)}}
        return {"description": prompt.description, "messages": [message], **_COMPLETE}

    async def complete(self, context: Context, params: types.CompleteRequestParams) -> dict[str, Any]:
        name, value, toolset = params.argument.name, params.argument.value, self._toolset
        given = (params.context.arguments if params.context is not None else None) or {}
        found = Completion()
        if isinstance(params.ref, types.PromptReference):
            completer, prompt = toolset.completer, self._prompts.get(params.ref.name)
            arguments = [] if prompt is None else [each.name for each in prompt.arguments]
            if completer is not None and name in arguments:
                found = await answered(context, lambda: completer.complete(name, value, given), self._owner)
        elif (resources := toolset.resources) is not None:
            uri = params.ref.uri
            found = await answered(context, lambda: resources.complete(uri, name, value, given), self._owner)
        completion = {"values": list(found.values), "hasMore": found.more}
        return {"completion": completion, **_COMPLETE, "_meta": dict(META)}

    def _may_use(self, context: Context) -> bool:
        return grant_of((context.request or Caller()).identity).may_use(self._owner)


def code_of(error_type: str) -> int:
    """Return the protocol's code for an error of a toolset."""
    return INVALID_PARAMS if error_type in _CALLERS_FAULT else SERVER_ERROR


async def answered(context: Context, ask: Callable[[], Awaitable[T]], toolset: str) -> T:
    """Return the result of `ask` for this toolset, on behalf of the caller. Raises MCPError: with the message
    of the toolset or the engine; without details for an unexpected exception.
    """
    call = new_call(context.params.get("_meta") if context.params else None, context.request or Caller())
    fields: Mapping[str, Any] = {
        "method": context.method,
        "correlation_id": call.correlation_id,
        "caller": call.grant.name,
    }
    try:
        with on_behalf_of(call):
            admit(call.grant, "read", toolset)
            answer = await ask()
    except (ToolError, EngineFault) as failed:
        error = failed if isinstance(failed, ToolError) else tool_error(failed)
        log.warning("Request failed", extra={**fields, "error": error.code})
        raise MCPError(
            code_of(error.code), error.message, {"error_type": error.code, **error.details}
        ) from None
    except Exception:
        # The boundary, as for a tool: the SDK's handshake loop would send the message to the client.
        log.exception("Request failed unexpectedly", extra=fields)
        raise MCPError(INTERNAL_ERROR, "Internal error") from None
    log.info("Request completed", extra=fields)
    return answer


class HostedResources:
    """`WatchedResources` of a toolset: callers of the same access scope have the same view."""

    def __init__(self, resources: Resources, toolset: str) -> None:
        """`toolset` is the owner of the resources."""
        self._resources = resources
        self._toolset = toolset

    async def state(self, uris: Collection[str]) -> Hashable:
        return await self._resources.state(uris)

    def view(self, caller: Caller) -> Reach | None:
        grant = grant_of(caller.identity)
        if words := grant.refusal("read", self._toolset):
            raise MCPError(SERVER_ERROR, words, {"error_type": "forbidden"})
        return grant.access.reach

    async def version(self, uri: str, view: Reach | None) -> Hashable | None:
        token = GRANT.set(EVERYBODY if view is None else Grant(Access(ANYBODY, reach=view)))
        try:
            return await self._resources.version(uri)
        finally:
            GRANT.reset(token)

    async def required(self, context: Context, uri: str) -> Hashable:
        async def look() -> Hashable:
            version = await self._resources.version(uri)
            if version is None:
                raise ToolError("resource_not_found", f"There is no resource {uri[:200]}.", uri=uri[:2_000])
            return version

        return await answered(context, look, self._toolset)


class HostedTasks:
    """`TaskSource` of a toolset: asks on behalf of the caller, and answers faults in words."""

    def __init__(self, tasks: Tasks, toolset: str) -> None:
        """`toolset` is the owner of the tasks."""
        self._tasks = tasks
        self._toolset = toolset

    async def state(self, context: Context, task_id: str, wait: float = 0.0) -> TaskState:
        return await answered(context, lambda: self._tasks.get(task_id, wait), self._toolset)

    async def result(self, context: Context, task_id: str) -> dict[str, Any]:
        outcome = await answered(context, lambda: self._tasks.result(task_id), self._toolset)
        return outcome.as_result()

    async def page(self, context: Context, cursor: str | None) -> tuple[Sequence[TaskState], str | None]:
        return await answered(context, lambda: self._tasks.page(cursor), self._toolset)

    async def cancel(self, context: Context, task_id: str) -> TaskState:
        return await answered(context, lambda: self._tasks.cancel(task_id), self._toolset)


def _content(content: ResourceText) -> dict[str, Any]:
    meta = {**META}
    if content.following is not None:
        meta["kb/following"] = content.following
    return {"uri": content.uri, "mimeType": content.mime_type, "text": content.text, "_meta": meta}


def _prompt(prompt: Prompt) -> dict[str, Any]:
    return {
        "name": prompt.name,
        "title": prompt.title,
        "description": prompt.description,
        "arguments": msgspec.to_builtins(prompt.arguments),
    }
