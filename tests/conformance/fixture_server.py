"""The server that the conformance suite exercises: everything MCP has, on this project's own hosting.

The tools of the product are typed functions without prompts, resources or questions to the caller.
What the hosting carries beyond them is proven with this server, built with the official SDK and served
by `build_app` and `serve` as the product is.

    python -m tests.conformance.fixture_server --port 3900
"""

from __future__ import annotations

import argparse
import asyncio
import re
import warnings
from collections.abc import Mapping
from typing import Any

import mcp_types as types
from aiohttp import web
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError

from kb_server.hosting.http import build_app
from kb_server.hosting.serve import serve
from kb_server.settings import ServerSettings
from mcp_aiohttp.protocol.kernel import HostedServer
from tests.conformance.fixture_content import PNG, embedded, image, text
from tests.conformance.fixture_inputs import CONTEXT
from tests.conformance.fixture_tools import Context, FixtureTool, Result, tools

NAME, VERSION = "conformance-fixture", "1.0.0"

_TEMPLATE = re.compile(r"^test://template/(?P<id>[^/]+)/data$")


def fixture_app() -> web.Application:
    """The application with the fixture at `/mcp`."""
    changed = NotificationOptions(prompts_changed=True, tools_changed=True)
    return build_app(ServerSettings(), [], servers={"/mcp": HostedServer(fixture_server(), changed)})


def fixture_server() -> Server[None]:
    """The fixture, as the SDK knows it."""
    bus = InMemorySubscriptionBus()
    known = {tool.name: tool for tool in tools(bus)}

    def schema(name: str) -> Mapping[str, Any] | None:
        return known[name].schema if name in known else None

    server: Server[None] = Server(
        NAME, version=VERSION, title="Conformance fixture", get_tool_input_schema=schema
    )
    # Sealed: a caller that changes the state it carries from round to round is refused.
    server.middleware.append(RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience=NAME))
    server.add_request_handler(
        "subscriptions/listen", types.SubscriptionsListenRequestParams, ListenHandler(bus)
    )
    _add_tools(server, known)
    _add_prompts(server)
    _add_resources(server)
    _add_the_rest(server)
    return server


def _add_tools(server: Server[None], known: Mapping[str, FixtureTool]) -> None:
    async def listed(_context: Context, _params: types.PaginatedRequestParams) -> types.ListToolsResult:
        shown = [
            types.Tool(name=tool.name, description=tool.description, input_schema=tool.schema)
            for tool in known.values()
        ]
        return types.ListToolsResult(tools=shown)

    async def call(context: Context, params: types.CallToolRequestParams) -> Result:
        if params.name not in known:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")
        return await known[params.name].run(context, params)

    server.add_request_handler("tools/list", types.PaginatedRequestParams, listed)
    server.add_request_handler("tools/call", types.CallToolRequestParams, call)


_PROMPTS: Mapping[str, tuple[str, ...]] = {
    "test_simple_prompt": (),
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
    "test_prompt_with_image": (),
    "test_input_required_result_prompt": (),
}
"""The prompts by name, with their required arguments."""


def _add_prompts(server: Server[None]) -> None:
    async def listed(_context: Context, _params: types.PaginatedRequestParams) -> types.ListPromptsResult:
        return types.ListPromptsResult(prompts=[_prompt(name) for name in _PROMPTS])

    async def get(
        _context: Context, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult | types.InputRequiredResult:
        if params.name == "test_input_required_result_prompt":
            chosen = CONTEXT.answered(params)
            return CONTEXT.ask() if chosen is None else _said(text(f"Use the context {chosen}."))
        return _said(*_messages(params.name, params.arguments or {}))

    server.add_request_handler("prompts/list", types.PaginatedRequestParams, listed)
    server.add_request_handler("prompts/get", types.GetPromptRequestParams, get)


def _prompt(name: str) -> types.Prompt:
    arguments = [
        types.PromptArgument(name=argument, description=f"The argument {argument}", required=True)
        for argument in _PROMPTS[name]
    ]
    return types.Prompt(name=name, description=f"The prompt {name}", arguments=arguments or None)


def _messages(name: str, given: Mapping[str, str]) -> list[types.ContentBlock]:
    missing = [argument for argument in _PROMPTS.get(name, ()) if argument not in given]
    if name not in _PROMPTS or missing:
        raise MCPError(types.INVALID_PARAMS, f"Unknown prompt or missing arguments: {name} {missing}")
    if name == "test_prompt_with_arguments":
        return [text(f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'")]
    if name == "test_prompt_with_embedded_resource":
        resource = embedded(given["resourceUri"], "text/plain", "Embedded resource content for testing.")
        return [resource, text("Please process the embedded resource above.")]
    if name == "test_prompt_with_image":
        return [image(), text("Please analyze the image above.")]
    return [text("This is a simple prompt for testing.")]


def _said(*content: types.ContentBlock) -> types.GetPromptResult:
    return types.GetPromptResult(
        messages=[types.PromptMessage(role="user", content=block) for block in content]
    )


_RESOURCES: Mapping[str, str] = {
    "test://static-text": "text/plain",
    "test://static-binary": "image/png",
    "test://watched-resource": "text/plain",
}
"""The resources by URI, with their types."""


def _add_resources(server: Server[None]) -> None:
    async def listed(_context: Context, _params: types.PaginatedRequestParams) -> types.ListResourcesResult:
        shown = [
            types.Resource(name=uri.rpartition("/")[2], uri=uri, mime_type=kind, description=f"At {uri}")
            for uri, kind in _RESOURCES.items()
        ]
        return types.ListResourcesResult(resources=shown)

    async def templates(
        _context: Context, _params: types.PaginatedRequestParams
    ) -> types.ListResourceTemplatesResult:
        template = types.ResourceTemplate(
            name="template", uri_template="test://template/{id}/data", mime_type="application/json"
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def read(_context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        return types.ReadResourceResult(contents=[_contents(params.uri)])

    async def accept(_context: Context, _params: types.RequestParams) -> types.EmptyResult:
        # Nothing is kept: hosting is stateless in this era, and has no stream for updates.
        return types.EmptyResult()

    server.add_request_handler("resources/list", types.PaginatedRequestParams, listed)
    server.add_request_handler("resources/templates/list", types.PaginatedRequestParams, templates)
    server.add_request_handler("resources/read", types.ReadResourceRequestParams, read)
    server.add_request_handler("resources/subscribe", types.SubscribeRequestParams, accept)
    server.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, accept)


def _contents(uri: str) -> types.TextResourceContents | types.BlobResourceContents:
    if uri == "test://static-binary":
        return types.BlobResourceContents(uri=uri, mime_type="image/png", blob=PNG)
    if uri in _RESOURCES:
        words = "This is the content of the static text resource."
        return types.TextResourceContents(uri=uri, mime_type="text/plain", text=words)
    if (match := _TEMPLATE.match(uri)) is not None:
        words = f'{{"id":"{match["id"]}","templateTest":true,"data":"Data for ID: {match["id"]}"}}'
        return types.TextResourceContents(uri=uri, mime_type="application/json", text=words)
    raise MCPError(types.INVALID_PARAMS, "Resource not found", {"uri": uri})


def _add_the_rest(server: Server[None]) -> None:
    async def complete(_context: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        values = [word for word in ("test", "testing", "paris") if word.startswith(params.argument.value)]
        completion = types.Completion(values=values, total=len(values), has_more=False)
        return types.CompleteResult(completion=completion)

    async def set_level(_context: Context, _params: types.SetLevelRequestParams) -> types.EmptyResult:
        # Stateless: the level does not outlive the request that sets it.
        return types.EmptyResult()

    server.add_request_handler("completion/complete", types.CompleteRequestParams, complete)
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, set_level)


def main() -> None:
    """Serve the fixture until SIGTERM."""
    parser = argparse.ArgumentParser(description="the MCP server that the conformance suite exercises")
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    # The versions with a handshake still have the log messages that 2026-07-28 deprecates.
    warnings.filterwarnings("ignore", category=MCPDeprecationWarning)
    asyncio.run(serve(fixture_app(), "127.0.0.1", arguments.port))


if __name__ == "__main__":
    main()
