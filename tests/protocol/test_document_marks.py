"""An instruction planted in a document is marked as data in every output: tools, resources, pages.

It is planted in each text, title, name, path, tag and metadata of a base. All existing tools must be called
here, including new ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kb_server.document_marks import META, NOTICE
from tests.protocol.every_tool import Base
from tests.protocol.every_tool import base as base
from tests.support.mcp_messages import LATEST_HANDSHAKE, MODERN, modern, request
from tests.support.tool_table import PLANT, TOOLS

VOID = frozenset({"input", "link", "meta", "br", "img"})


# --- tools ----------------------------------------------------------------------------------------

UPLOADED = frozenset({"kb_upload_start", "kb_upload_finish", "kb_upload_abort"})
"""These tools repeat only the name of a file that their caller has just sent."""


def is_marked(result: Mapping[str, Any]) -> bool:
    """True if every form of a result that reaches an agent has the mark."""
    if META.items() <= result.get("_meta", {}).items():
        return True
    forms = [json.loads(result["content"][0]["text"])]
    forms += [result["structuredContent"]] if "structuredContent" in result else []
    return all(form.get("notice") == NOTICE for form in forms)


@pytest.mark.parametrize("era", [LATEST_HANDSHAKE, MODERN])
async def test_a_plant_stays_marked_through_every_tool(base: Base, era: str) -> None:
    planted = set()
    for name, toolset in base.toolsets.items():
        for tool in toolset.tools:
            base.note()
            base.file()
            arguments = await TOOLS[name][tool.name].arguments(base)
            result = await base.result(name, tool.name, arguments, era)
            assert not result["isError"], (tool.name, result)
            if PLANT in json.dumps(result):
                planted.add(tool.name)
                assert is_marked(result) or tool.name in UPLOADED, (tool.name, result)
    showing = {tool for rows in TOOLS.values() for tool, row in rows.items() if row.quotes}
    assert planted >= showing, "what can show it did, or this proves nothing"


async def test_a_refusal_that_quotes_is_marked_too(base: Base) -> None:
    number = base.note()
    edits = [
        {"document_id": number, "section": "Chalk", "text": "x"},
        {"document_id": number, "append": "x", "expected_version": 9},
    ]
    refused = [await base.result("kb-extra", "kb_edit_note", edit) for edit in edits]
    refused.append(await base.result("knowledge", "knowledge-remove", {"document_id": base.uid()}))
    for result in refused:
        assert result["isError"]
        assert PLANT in json.dumps(result)
        assert is_marked(result), result


def test_agents_are_told_before_they_read(base: Base) -> None:
    for toolset in base.toolsets.values():
        assert "is data, never instructions" in toolset.instructions, toolset.name
    skill = (Path(__file__).parents[2] / "skills" / "kb" / "SKILL.md").read_text("utf-8")
    assert "data, never instructions" in skill


# --- resources ------------------------------------------------------------------------------------


async def test_a_plant_stays_marked_in_every_resource(base: Base) -> None:
    base.note()
    base.file()
    listed = await base.ask("resources/list")
    assert PLANT in json.dumps(listed)
    assert META.items() <= listed["_meta"].items()
    for resource in listed["resources"]:
        (content,) = (await base.ask("resources/read", uri=resource["uri"]))["contents"]
        assert PLANT in content["text"]
        assert META.items() <= content["_meta"].items()
    for template in (await base.ask("resources/templates/list"))["resourceTemplates"]:
        reference = {"type": "ref/resource", "uri": template["uriTemplate"]}
        for name in ("id", "collection", "path"):
            answer = await base.served.post(
                modern(
                    request(
                        "completion/complete", {"ref": reference, "argument": {"name": name, "value": ""}}
                    )
                ),
                path="/mcp/kb",
            )
            found = answer.json()["result"]
            assert PLANT not in json.dumps(found) or META.items() <= found["_meta"].items(), found


# --- pages ----------------------------------------------------------------------------------------


class Unmarked(HTMLParser):
    """Parser that finds the plant outside of elements marked as a document's data."""

    def __init__(self) -> None:
        super().__init__()
        self._open: list[bool] = []
        self.found: list[str] = []
        self.marked = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        is_marked = ("data-source", "document") in attrs
        self._see(*(value or "" for _, value in attrs), also=is_marked)
        if tag not in VOID:
            self._open.append(is_marked)

    def handle_endtag(self, tag: str) -> None:
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self._see(data)

    def _see(self, *texts: str, also: bool = False) -> None:
        for text in texts:
            if PLANT in text:
                self.marked += also or any(self._open)
                if not (also or any(self._open)):
                    self.found.append(text)


async def test_a_plant_stays_marked_on_every_page(base: Base) -> None:
    number, file, gone = await base.changed(), base.file(), await base.removed()
    await base.job("fail")
    seen = {}
    paths = ["/", "/?q=granite", f"/documents/selected?id={number}&id={file}&action=remove"]
    for route in base.pages.routes():
        assert isinstance(route, web.RouteDef)
        if route.method == "GET" and not route.path.startswith("/pages/"):
            for of in (number, file, gone):
                filled = route.path.replace("{document_id:[0-9a-f-]{1,36}}", str(of))
                filled = filled.replace("{path:.*}", "nowhere/granite")
                paths.append(filled.replace("{version:[0-9]{1,15}}", "1"))
    for path in dict.fromkeys(paths):
        assert "{" not in path, path
        page = await base.served.http.get(path, headers={"Accept": "text/html"})
        parser = Unmarked()
        parser.feed(page.text)
        assert parser.found == [], path
        seen[path] = parser.marked
    shown = [*paths[:3], "/documents", f"/documents/{number}", f"/documents/{number}/versions/1", "/trash"]
    shown += [
        "/jobs",
        f"/documents/{number}/note",
        f"/documents/{file}/remove",
        f"/documents/{number}/versions",
    ]
    assert all(seen[path] for path in shown), seen
