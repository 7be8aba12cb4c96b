"""The tools of the toolset `ragler` in front of kb's engine and of the simulator, used by MCP clients."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from mcp import Client

from kb_contracts.api.ragler import collection_id
from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.toolsets import build_toolset
from kb_simulator import SimulatorSettings, in_thread
from tests.protocol.conftest import Serve, Served
from tests.protocol.sockets import connect as connect
from tests.protocol.test_official_client import MODES, Mode
from tests.support.engines import API_KEY, engine
from tests.support.mcp_messages import call, initialize, request
from tests.support.patience import ANSWER_SECONDS
from tests.support.ragler import DESCRIPTIONS, THREE

API_DOCS, SUPPORT = collection_id("api-docs"), collection_id("support-faq")
TOPICS: tuple[tuple[str, list[str]], ...] = (
    ("API authentication: send the API key as a bearer token.", ["api", "authentication"]),
    ("API authentication fails with 401 where the token has expired.", ["api", "authentication"]),
    ("Rate limits of the API: a hundred requests a minute.", ["api", "limits"]),
    ("Authentication of people: single sign-on with the company's account.", ["sso"]),
    ("Invoices are sent on the first day of a month.", ["billing"]),
    ("Bees keep warm in a cluster.", []),
)
SOURCES = ("confluence", "web", "manual")


@dataclass(frozen=True)
class Base:
    """An engine with RAGler's operations."""

    name: str
    url: str

    def settings(self, home: Path) -> dict[str, Any]:
        """Settings of a server in front of it."""
        return {"ragler_api_url": self.url, "ragler_api_key": API_KEY, "home": home}


def filled(name: str, url: str) -> Base:
    """Fill the engine with three dozen documents in two collections, one of them described."""
    with httpx.Client(
        base_url=url, headers={"Authorization": f"Bearer {API_KEY}"}, timeout=ANSWER_SECONDS, verify=False
    ) as http:
        jobs = [
            http.post(
                "/api/v1/jobs",
                json={
                    "text": f"{text} ({collection}, {source})",
                    "tags": [f"collection:{collection}", *tags],
                    "metadata": {
                        "source_type": source,
                        "source_url": f"https://{source}.example/{number}",
                        "context_breadcrumbs": f"Handbook > {collection}",
                        "last_modified_by": "dev@company.com",
                    },
                },
            )
            .raise_for_status()
            .json()["id"]
            for collection in ("api-docs", "support-faq")
            for number, (text, tags) in enumerate(TOPICS)
            for source in SOURCES
        ]
        for job in jobs:
            ended = http.get(f"/api/v1/jobs/{job}", params={"wait": 30}).raise_for_status().json()
            assert ended["status"] == "completed", ended
        described = {
            "name": "api-docs",
            "description": "Internal API guides",
            "created_by": "dev@company.com",
            "target_audience": ["developers"],
            "usage_scenarios": ["onboarding"],
        }
        http.put(f"/collections/{API_DOCS}", json=described).raise_for_status()
    return Base(name, url)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Base]:
    """kb's engine; its model is tested with it in `tests/contract/test_engine.py`."""
    with engine(tmp_path_factory.mktemp("engine")) as url:
        yield filled("engine", url)


@pytest.fixture(scope="module")
def simulated_base() -> Iterator[Base]:
    with in_thread(SimulatorSettings(port=0, api_key=API_KEY)) as running:
        yield filled("simulator", running.url)


@pytest.fixture(params=["real", "simulated_base"])
def base(request: pytest.FixtureRequest) -> Base:
    chosen: Base = request.getfixturevalue(request.param)
    return chosen


@asynccontextmanager
async def serving(base: Base, home: Path, serve: Serve) -> AsyncIterator[Served]:
    async with Services(ServerSettings(**base.settings(home))) as services:
        yield await serve(build_toolset("ragler", services))


@pytest.fixture
async def served(base: Base, tmp_path: Path, serve: Serve) -> AsyncIterator[Served]:
    """The toolset alone, at `/mcp` and at `/mcp/ragler`."""
    async with serving(base, tmp_path, serve) as running:
        yield running


@dataclass(frozen=True)
class Agent:
    """The official client, which validates every result against the published schema."""

    url: str
    mode: Mode

    async def ok(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return the structured content of a call that must succeed, on its own connection."""
        async with Client(self.url, mode=self.mode, read_timeout_seconds=ANSWER_SECONDS) as session:
            result = await session.call_tool(tool, arguments)
        assert result.is_error is False, result
        assert result.structured_content is not None
        return dict(result.structured_content)


@pytest.fixture
def mode() -> Mode:
    """The mode of the official client, unless a test names it: `test_official_client.py` proves each."""
    return "2026-07-28"


@pytest.fixture
def agent(served: Served, mode: Mode) -> Agent:
    return Agent(served.mcp, mode)


class TestIntegration:
    """The tests that RAGler's document requires of its tools."""

    @pytest.mark.requirement("R72")
    @pytest.mark.parametrize("mode", MODES)
    async def test_it_searches_across_all_collections(self, agent: Agent) -> None:
        result = await agent.ok("search_knowledge", query="API authentication", limit=5)
        assert len(result["results"]) == 5
        assert result["results"][0]["score"] > 0.5
        scores = [found["score"] for found in result["results"]]
        assert scores == sorted(scores, reverse=True)
        assert all(0 <= score <= 1 for score in scores)
        assert result["total"] >= 5
        assert result["query"] == "API authentication"
        assert result["execution_time"] >= 0

    @pytest.mark.requirement("R15", "R25", "R73")
    async def test_it_filters_by_collection(self, agent: Agent) -> None:
        for wanted in (API_DOCS, SUPPORT):
            result = await agent.ok(
                "search_knowledge", query="authentication", collection_id=wanted, limit=100
            )
            assert result["results"]
            assert {found["metadata"]["collection_id"] for found in result["results"]} == {wanted}

    @pytest.mark.requirement("R14", "R25", "R74")
    async def test_it_applies_metadata_filters(self, agent: Agent) -> None:
        result = await agent.ok(
            "search_knowledge",
            query="authentication",
            filters={"source_type": "confluence", "tags": ["api"]},
            limit=100,
        )
        assert len(result["results"]) == 6
        for found in result["results"]:
            assert found["metadata"]["source_type"] == "confluence"
            assert "api" in found["metadata"]["tags"]
            assert found["source_url"].startswith("https://confluence.example/")
            assert found["metadata"]["context_breadcrumbs"].startswith("Handbook > ")
            assert found["metadata"]["last_modified_by"] == "dev@company.com"
            assert found["metadata"]["last_modified_at"].endswith("Z")

    @pytest.mark.requirement("R17", "R18", "R75")
    async def test_it_lists_all_collections(self, agent: Agent) -> None:
        collections = (await agent.ok("list_collections"))["collections"]
        assert {each["name"]: each["id"] for each in collections} == {
            "api-docs": API_DOCS,
            "support-faq": SUPPORT,
        }
        for each in collections:
            assert set(each) == {"id", "name", "description", "chunk_count", "created_by", "created_at"}
            assert each["chunk_count"] == 18


# --- a plain HTTP caller --------------------------------------------------------------------------


@pytest.mark.requirement("R31")
@pytest.mark.parametrize("path", ["/mcp", "/mcp/ragler"])
async def test_the_handshake_tells_name_version_and_capabilities(served: Served, path: str) -> None:
    result = (await served.post(initialize("2025-06-18"), path=path)).json()["result"]
    info = result["serverInfo"]
    assert (info["name"], info["version"]) == ("ragler", "1.0.0")
    assert result["capabilities"]["tools"] == {"listChanged": False}
    assert "prompts" not in result["capabilities"]
    assert "search_knowledge" in result["instructions"]


@pytest.mark.requirement("R86")
async def test_the_interface_stays_when_the_store_behind_it_changes(
    real: Base, simulated_base: Base, tmp_path: Path, serve: Serve
) -> None:
    """SQLite with vectors, and dictionaries in memory: equal lists, and answers with equal members."""
    listings, answers = [], []
    for base in (real, simulated_base):
        async with serving(base, tmp_path / base.name, serve) as running:
            tools = (await running.post(request("tools/list"))).json()["result"]["tools"]
            listings.append(tools)
            calls = (
                call("search_knowledge", query="API authentication", collection_id=API_DOCS, limit=3),
                call("list_collections"),
                call("get_collection_info", collection_id=API_DOCS),
            )
            told = [(await running.post(each)).json()["result"]["structuredContent"] for each in calls]
            for tool, each in zip(tools, told, strict=True):
                jsonschema.validate(each, tool["outputSchema"])
            answers.append([_shape(each) for each in told])
    assert listings[0] == listings[1]
    assert {tool["name"]: tool["description"] for tool in listings[0]} == DESCRIPTIONS
    assert tuple(tool["name"] for tool in listings[0]) == THREE
    assert answers[0] == answers[1]


def _shape(value: Any) -> Any:
    """The members and their types; for a list the distinct shapes of its items."""
    if isinstance(value, dict):
        return {name: _shape(member) for name, member in value.items()}
    if isinstance(value, list):
        shapes = {json.dumps(_shape(item), sort_keys=True) for item in value}
        return sorted(shapes)
    return "number" if isinstance(value, int | float) else type(value).__name__
