"""Every existing tool, with arguments with which it succeeds, in front of a simulated engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from kb_contracts.api import ragler as r
from kb_contracts.api.operations import LIST_COLLECTIONS, PUT_COLLECTION
from kb_server.engine_client.client import HttpEngine
from kb_server.hosting.http import build_app
from kb_server.hosting.toolset_server import mount
from kb_server.pages.routes import Pages
from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.tool import Toolset
from kb_server.toolsets import TOOLSETS, build_toolset
from kb_server.uploads.routes import routes
from kb_simulator.engine.jobs import policy_of
from tests.protocol.conftest import Served, serving
from tests.support.mcp_messages import MODERN, PLAIN, modern, request
from tests.support.simulated_engine import SimulatedEngine, simulated_engine
from tests.support.tool_table import PLANT, TEXT


@dataclass
class EveryTool(ABC):
    """The tools of `toolsets` in front of `engine`, and the documents and jobs for their calls.

    `folder` contains files that `knowledge-add` may read. All texts and names of documents contain `PLANT`.
    """

    engine: SimulatedEngine
    toolsets: Mapping[str, Toolset]
    folder: Path

    @abstractmethod
    async def result(
        self, toolset: str, tool: str, arguments: Mapping[str, Any], era: str = MODERN
    ) -> dict[str, Any]:
        """Return the result of `tools/call` for a tool."""

    def note(self) -> int:
        """Add a note and return its number."""
        return self._add("note")

    def file(self) -> int:
        name = f"{PLANT} {uuid4()}.md"
        return self._add("markdown", filename=name, source_path=f"/{name}", format="md")

    def uid(self) -> str:
        return str(self.engine.document(self.file()).uid)

    def _add(self, kind: Any, **members: Any) -> int:
        members |= {"title": PLANT, "metadata": {PLANT: PLANT}, "sha256": uuid4().hex * 2}
        return self.engine.add("collection:memory", PLANT, text=TEXT, doc_type=kind, **members).id

    async def changed(self) -> int:
        """Return the number of a note with an earlier version."""
        number = self.note()
        await self.ok("kb", "kb_update_note", document_id=number, text=f"{TEXT} Chalk.")
        return number

    async def removed(self) -> int:
        number = await self.changed()
        await self.ok("kb-extra", "kb_delete", document_id=number)
        return number

    async def job(self, policy: str) -> str:
        """Return the id of a job for a planted note, under this policy of the simulator."""
        before, self.engine.state.policy = self.engine.state.policy, policy_of(policy)
        added = await self.ok("kb", "kb_addnote", text=f"{TEXT} {uuid4()}", title=PLANT)
        self.engine.state.policy = before
        return str(added["job_id"])

    async def upload(self, *, whole: bool) -> str:
        name = f"{PLANT} {uuid4()}.md"
        started = await self.ok("kb", "kb_upload_start", filename=name, total_size=4)
        if whole:
            piece = {"upload_id": started["upload_id"], "chunk_index": 0, "data": "dGV4dA=="}
            await self.ok("kb", "kb_upload_chunk", **piece)
        return str(started["upload_id"])

    async def collection(self) -> str:
        """Return the id of the collection `memory`, after setting `PLANT` as its description."""
        self.note()
        client = HttpEngine(self.engine.url)
        listed = await client.call(LIST_COLLECTIONS)
        (memory,) = (each.id for each in listed.collections if each.name == "memory")
        body = r.CollectionRequest(name="memory", description=PLANT)
        await client.call(PUT_COLLECTION, body=body, path={"collection_id": memory})
        await client.close()
        return str(memory)

    def text_file(self) -> str:
        path = self.folder / f"{PLANT} {uuid4()}.html"
        path.write_text(f"{TEXT} {uuid4()}")
        return str(path)

    async def ok(self, toolset: str, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self.result(toolset, tool, arguments)
        assert not result["isError"], (tool, result)
        structured: dict[str, Any] = result["structuredContent"]
        return structured


@dataclass
class Base(EveryTool):
    """All toolsets and the pages, over HTTP."""

    served: Served
    pages: Pages

    async def result(
        self, toolset: str, tool: str, arguments: Mapping[str, Any], era: str = MODERN
    ) -> dict[str, Any]:
        message = request("tools/call", {"name": tool, "arguments": arguments})
        headers = {**PLAIN, "MCP-Protocol-Version": era}
        sent, with_headers = (modern(message), None) if era == MODERN else (message, headers)
        answer = (await self.served.post(sent, with_headers, f"/mcp/{toolset}")).json()
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        answer = (await self.served.post(modern(request(method, params)), path="/mcp/kb")).json()
        result: dict[str, Any] = answer["result"]
        return result


@pytest.fixture
async def base(tmp_path: Path) -> AsyncIterator[Base]:
    text = tmp_path / "text.md"
    text.write_text(TEXT)
    (tmp_path / "files").mkdir()
    async with simulated_engine() as engine:
        settings = ServerSettings(
            engine_url=engine.url,
            ragler_api_url=engine.url,
            home=tmp_path / "home",
            text_file=str(text),
            text_description="stones",
            file_roots=[str(tmp_path / "files")],
        )
        async with Services(settings, http_base="http://127.0.0.1:3000") as services:
            toolsets = {name: build_toolset(name, services) for name in TOOLSETS}
            pages = Pages(services)
            app = build_app(
                settings,
                mount([*toolsets.values()], ["kb"]),
                routes=[*routes(lambda: services.uploads), *pages.routes()],
                root=pages.root,
            )
            async with serving(app) as served:
                yield Base(engine, toolsets, tmp_path / "files", served, pages)
