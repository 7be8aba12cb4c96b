"""The stack with the official client, and the guarantees of the deployment (K1 to K14)."""

from __future__ import annotations

import re
import time

import httpx
import pytest
from mcp import Client

from tests.integration.conftest import Images, Report, RunningStack
from tests.integration.containers import ENGINE_KEY, Engine, Lab, Server
from tests.support.eventually import eventually
from tests.support.patience import ANSWER_SECONDS
from tests.support.tool_table import TOOLS

pytestmark = pytest.mark.process

TITLE = "Starlings"
TEXT = "Starlings turn together because each one follows its seven nearest neighbours."


@pytest.mark.requirement("K1", "K2", "E31", "E32")
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_official_client_finds_a_note_through_both_containers(
    stack: RunningStack, mode: str
) -> None:
    """Over Streamable HTTP, in both eras; the tool's answer agrees with the engine's API."""
    async with Client(stack.server.mcp_url, mode=mode) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == list(TOOLS["kb"])
        added = await client.call_tool("kb_addnote", {"text": TEXT, "title": TITLE, "wait_seconds": 50})
        assert added.structured_content is not None
        found = await client.call_tool("kb_search", {"query": "how do starlings turn", "top": 3})
    assert found.structured_content is not None
    document = added.structured_content["document_id"]
    assert found.structured_content["results"][0]["document_id"] == document
    assert stack.engine.get(f"/documents/{document}")["title"] == TITLE


@pytest.mark.requirement("K3", "K4", "K5", "K8")
def test_the_server_finds_the_engine_by_its_service_name_and_has_its_key(stack: RunningStack) -> None:
    """http://engine:8000 on the containers' own network; without the key the engine refuses."""
    assert httpx.get(f"{stack.engine.url}/api/v1/status", timeout=ANSWER_SECONDS).status_code == 401
    settings = stack.server.run("kb", "config")
    assert re.search(r"http://engine:8000", settings)
    assert ENGINE_KEY not in settings
    assert stack.server.caller().ok("kb_status")["version"] == "v3.0.0"


def test_an_agent_gets_its_first_answer_after_a_start(images: Images, workshop: Lab, report: Report) -> None:
    """Measures the time from the start of both containers to an answered search, and their memory at rest."""
    network = workshop.network()
    engine, server = Engine(images.engine, network), Server(images.server, network)
    began = time.monotonic()
    workshop.started(engine, server)
    server.until_ready("/healthz")
    eventually(
        lambda: server.caller().call("kb_search", query="anything"),
        lambda result: not result.get("isError"),
        what="the first answered tool call",
    )
    seconds = time.monotonic() - began
    memory = {name: part.memory_bytes() / 2**20 for name, part in (("engine", engine), ("server", server))}
    report.tell(f"first answered tool call {seconds:.1f} s after `docker run` of both containers")
    report.tell("memory at rest: " + ", ".join(f"{name} {held:.0f} MiB" for name, held in memory.items()))
    assert memory["server"] < 200
