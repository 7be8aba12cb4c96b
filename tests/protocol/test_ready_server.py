"""A server built with the official SDK on this project's hosting, and arguments repeated in headers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any

import mcp_types as types
import msgspec
import pytest
from mcp import Client
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server

from kb_server.hosting.http import build_app
from kb_server.settings import ServerSettings
from kb_server.tool import Annotations, Call, Tool, Toolset
from mcp_aiohttp.protocol.kernel import HostedServer
from tests.protocol.conftest import Serve, Served, serving
from tests.protocol.test_official_client import over_websocket
from tests.support.mcp_messages import call, modern, modern_headers
from tests.support.patience import ANSWER_SECONDS

_ROUTED = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}

Context = ServerRequestContext[None, Any]


def _server() -> Server[None]:
    """Return a server with one prompt, and one tool that requires a header."""

    async def prompts(_context: Context, _params: types.PaginatedRequestParams) -> types.ListPromptsResult:
        return types.ListPromptsResult(prompts=[types.Prompt(name="greet", description="Greets.")])

    async def answer(_context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(type="text", text=params.name)])

    def schema(name: str) -> Mapping[str, Any] | None:
        return _ROUTED if name == "routed" else None

    server: Server[None] = Server("ready", version="1", get_tool_input_schema=schema)
    server.add_request_handler("prompts/list", types.PaginatedRequestParams, prompts)
    server.add_request_handler("tools/call", types.CallToolRequestParams, answer)
    return server


class Routed(msgspec.Struct, forbid_unknown_fields=True):
    region: Annotated[str, msgspec.Meta(extra_json_schema={"x-mcp-header": "Region"})] = "here"


class RoutedTool(Tool[Routed, Routed]):
    name = "routed"
    title = "Routed"
    description = "Answers from a region."
    annotations = Annotations(read_only=True)
    arguments = Routed
    result = Routed

    async def run(self, arguments: Routed, call: Call) -> Routed:
        return arguments


@pytest.fixture
async def ready() -> AsyncIterator[Served]:
    """The SDK's server on this hosting."""
    app = build_app(ServerSettings(), [], servers={"/mcp": HostedServer(_server())})
    async with serving(app) as served:
        yield served


@pytest.fixture(params=["an SDK server", "a toolset"])
async def routed(request: pytest.FixtureRequest, ready: Served, serve: Serve) -> Served:
    """A server whose tool `routed` requires the header `Mcp-Param-Region`."""
    if request.param == "an SDK server":
        return ready
    toolset = Toolset("routed", "routed", "1", "Routed", "", (RoutedTool(),))
    return await serve(toolset)


@pytest.mark.parametrize("transport", [str, over_websocket])
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_server_of_the_sdk_is_served_as_it_is(ready: Served, mode: Any, transport: Any) -> None:
    """Features beyond a toolset, such as prompts, are available to clients of both eras."""
    async with Client(transport(ready.mcp), mode=mode, read_timeout_seconds=ANSWER_SECONDS) as session:
        listed = await session.list_prompts()
    assert [prompt.name for prompt in listed.prompts] == ["greet"]


@pytest.mark.parametrize("value", ["eu", "=?base64?ZXU=?="])
async def test_a_header_that_repeats_the_argument_is_let_pass(routed: Served, value: str) -> None:
    """Plain, or in the protocol's encoding for values that a header cannot contain."""
    message = modern(call("routed", region="eu"))
    headers = modern_headers(message, **{"Mcp-Param-Region": value})
    response = await routed.post(message, headers)
    assert response.status_code == 200
    assert "result" in response.json()


@pytest.mark.parametrize("value", [None, "us", "=?base64?ZXU?="])
async def test_a_header_that_disagrees_with_the_argument_is_refused(
    routed: Served, value: str | None
) -> None:
    """-32020 with HTTP status 400: a proxy and the tool must see the same region."""
    message = modern(call("routed", region="eu"))
    headers = modern_headers(message, **({"Mcp-Param-Region": value} if value else {}))
    response = await routed.post(message, headers)
    answer = response.json()
    assert (response.status_code, answer["error"]["code"], answer["id"]) == (400, -32020, "1")


async def test_a_call_of_the_handshake_era_needs_no_such_header(routed: Served) -> None:
    """These headers were introduced with 2026-07-28."""
    response = await routed.post(call("routed", region="eu"))
    assert "result" in response.json()
