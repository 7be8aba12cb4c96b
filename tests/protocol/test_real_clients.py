"""Real MCP clients of agent frameworks: FastMCP, pydantic-ai and openai-agents."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, FunctionTool, RunContextWrapper
from agents.mcp import MCPServerStreamableHttp, MCPUtil
from agents.tool_context import ToolContext
from fastmcp import Client as FastMCP
from pydantic_ai.mcp import MCPToolset

from kb_server.schema import input_schema
from kb_server.toolsets import build_toolset
from tests.protocol.conftest import Serve, Served
from tests.support.knowledge import Knowledge
from tests.support.patience import ANSWER_SECONDS
from tests.support.stack import ROOT
from tests.support.tool_table import TOOLS

pytestmark = pytest.mark.process

CallTool = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Calls a tool through a client and returns the members of its result."""

CONTENT = b"# Granite\n\nGranite is an igneous rock.\n"

KEY = "a-key-for-agents"
FREE = {"kb_addnote", "kb_upload_start", "knowledge-add"}
"""Tools with a free-form object, which OpenAI's strict mode does not support."""

Connect = Callable[[str, str | None], AbstractAsyncContextManager[CallTool]]


@pytest.fixture(params=[None, KEY], ids=["open", "with a key"])
def key(request: pytest.FixtureRequest) -> str | None:
    found: str | None = request.param
    return found


@pytest.fixture
async def served(serve: Serve, knowledge: Knowledge, key: str | None) -> Served:
    """The toolset `kb` at `/mcp`, and `knowledge`, in front of a simulated engine."""
    kb = build_toolset("kb", knowledge.services)
    return await serve(kb, knowledge.toolset, settings={"api_key": key or ""})


def headers_of(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


@asynccontextmanager
async def fastmcp(url: str, key: str | None) -> AsyncIterator[CallTool]:
    """FastMCP's client, and its `.data`: objects built from the output schema."""
    async with FastMCP(url, auth=key) as client:

        async def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
            result = await client.call_tool(name, arguments)
            assert dataclasses.is_dataclass(result.data), f"{name}: {result.data!r}"
            assert not isinstance(result.data, type)
            return dataclasses.asdict(result.data)

        yield call


@asynccontextmanager
async def pydantic_ai(url: str, key: str | None) -> AsyncIterator[CallTool]:
    """pydantic-ai's toolset, which uses FastMCP's client."""
    async with MCPToolset(url, headers=headers_of(key), init_timeout=ANSWER_SECONDS) as toolset:

        async def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
            result = await toolset.direct_call_tool(name, arguments)
            assert isinstance(result, dict), f"{name}: {result!r}"
            return result

        yield call


def openai_server(url: str, key: str | None) -> MCPServerStreamableHttp:
    """A server of openai-agents, which would wait for an answer for five seconds."""
    params: Any = {"url": url, "headers": headers_of(key), "timeout": ANSWER_SECONDS}
    return MCPServerStreamableHttp(
        params,
        use_structured_content=True,
        cache_tools_list=True,
        client_session_timeout_seconds=ANSWER_SECONDS,
    )


@asynccontextmanager
async def openai_agents(url: str, key: str | None) -> AsyncIterator[CallTool]:
    """The tools of an agent in strict mode, called as its model calls them."""
    async with openai_server(url, key) as server:
        agent = Agent(name="test", mcp_servers=[server], mcp_config={"convert_schemas_to_strict": True})
        tools = {tool.name: tool for tool in await agent.get_mcp_tools(RunContextWrapper(None))}

        async def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
            tool, sent = tools[name], json.dumps(arguments)
            assert isinstance(tool, FunctionTool)
            context = ToolContext(None, tool_name=name, tool_call_id="1", tool_arguments=sent)
            result = json.loads(await tool.on_invoke_tool(context, sent))
            assert isinstance(result, dict), f"{name}: {result!r}"
            return result

        yield call


CLIENTS = [fastmcp, pydantic_ai, openai_agents]


@pytest.mark.parametrize("connect", CLIENTS)
async def test_a_client_goes_through_all_tools_and_has_the_data_of_each(
    served: Served, knowledge: Knowledge, key: str | None, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    called: set[str] = set()

    def noted(call: CallTool) -> CallTool:
        async def one(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
            called.add(name)
            return await call(name, arguments)

        return one

    async with connect(served.mcp, key) as call:
        known = await round_of_kb(noted(call))
        for tool in build_toolset("kb", knowledge.services).tools:
            if tool.name not in called:
                required = input_schema(tool.arguments).get("required", ())
                await noted(call)(tool.name, {each: known[each] for each in required})
    async with connect(f"{served.mcp}/knowledge", key) as call:
        await round_of_knowledge(noted(call), knowledge.root)
    assert called == TOOLS["kb"].keys() | TOOLS["knowledge"].keys()
    clients = ("fastmcp", "pydantic_ai", "openai", "mcp.client")
    assert [each.getMessage() for each in caplog.records if each.name.lower().startswith(clients)] == []


@pytest.mark.parametrize("toolset", ["kb", "knowledge"])
async def test_openai_agents_strict_mode_takes_every_schema_without_a_free_object(
    served: Served, key: str | None, toolset: str
) -> None:
    """Schemas that it cannot convert are passed on unchecked."""
    url = f"{served.mcp}/{toolset}"
    async with openai_server(url, key) as server:
        listed = await server.list_tools()
        strict = {
            tool.name
            for tool in listed
            if MCPUtil.to_function_tool(tool, server, convert_schemas_to_strict=True).strict_json_schema
        }
    assert strict == set(TOOLS[toolset]) - FREE


@pytest.mark.parametrize("connect", CLIENTS)
async def test_without_the_key_no_client_gets_in(
    serve: Serve, knowledge: Knowledge, connect: Connect
) -> None:
    """Each client passes on the server's message, which explains the problem."""
    served = await serve(build_toolset("kb", knowledge.services), settings={"api_key": KEY})
    with pytest.raises(Exception) as refused:
        async with connect(served.mcp, "another key") as call:
            await call("kb_status", {})
    assert any("KB_MCP_API_KEY" in words for words in messages(refused.value))


async def test_the_first_steps_print_the_reason_of_a_refusal_alone(
    serve: Serve, knowledge: Knowledge
) -> None:
    served = await serve(build_toolset("kb", knowledge.services), settings={"api_key": KEY})
    command = (sys.executable, ROOT / "examples/first_steps.py", "--url", served.mcp)
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, error = await process.communicate()
    assert (process.returncode, error.count(b"\n"), b"KB_MCP_API_KEY" in error) == (1, 1, True), error


def messages(error: BaseException) -> Iterator[str]:
    """Yield the message of an error, and of the members of an exception group."""
    yield str(error)
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from messages(each)


async def round_of_kb(call: CallTool) -> dict[str, Any]:
    """Add, find, read, change and follow a note and a file; return arguments of further calls."""
    added = await call("kb_addnote", {"text": "Bees keep warm by shivering", "wait_seconds": 30})
    assert (added["status"], added["error"], added["collection"]) == ("completed", None, "documents")
    note = added["document_id"]
    found = await call("kb_search", {"query": "how do bees keep warm"})
    assert found["results"][0]["document_id"] == note
    assert (await call("kb_get", {"document_id": note}))["chunks"][0]["text"] == "Bees keep warm by shivering"
    changed = await call("kb_update_note", {"document_id": note, "text": "Bees keep warm in a ball"})
    assert (changed["id"], changed["source_path"]) == (note, None)
    begun = await call(
        "kb_upload_start", {"filename": "g.md", "total_size": len(CONTENT), "source_path": "g"}
    )
    chunk = {"upload_id": begun["upload_id"], "chunk_index": 0, "data": base64.b64encode(CONTENT).decode()}
    assert (await call("kb_upload_chunk", chunk))["complete"] is True
    finished = await call("kb_upload_finish", {"upload_id": begun["upload_id"], "wait_seconds": 30})
    assert (finished["status"], finished["error"]) == ("completed", None)
    assert (await call("kb_get", {"source_path": "g"}))["total"] == 1
    assert (await call("kb_jobs", {}))["jobs"][0]["id"] == finished["job_id"]
    assert (await call("kb_jobs", {"job_id": added["job_id"]}))["jobs"][0]["error"] is None
    return {"document_id": note, "job_id": added["job_id"], "query": "bees"}


async def round_of_knowledge(call: CallTool, root: Path) -> None:
    path = root / "granite.html"
    path.write_text("<h1>Granite</h1><p>Granite is an igneous rock.</p>")
    task = (await call("knowledge-add", {"file_path": str(path)}))["task_id"]
    whole = await call("knowledge-add", {"file_path": str(path), "async": False})
    assert (await call("knowledge-task-status", {"task_id": task}))["status"] == "completed"
    assert (await call("knowledge-search", {"query": "granite"}))["results"][0]["metadata"][
        "page_num"
    ] is None
    shown = await call("knowledge-show", {})
    assert shown["documents"][0]["filename"] == path.name
    assert (await call("knowledge-status", {}))["knowledge_base"]["document_count"] == shown["total_count"]
    removal = {"document_id": whole["document_id"], "confirm": True}
    assert (await call("knowledge-remove", removal))["success"] is True
    clearing = {"confirm": True, "confirmation_phrase": "DELETE ALL"}
    assert (await call("knowledge-clear", clearing))["success"] is True
