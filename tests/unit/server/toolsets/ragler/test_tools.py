"""The tools of `ragler`: their publication, the requests to the backend, and the results."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kb_server.hosting.calls import PublishedTool
from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.tool import Toolset
from kb_server.toolsets import build_toolset
from kb_server.toolsets.ragler import KEPT_SECONDS, MAX_CHARS, MAX_DESCRIPTION_CHARS, MOST_NAMED
from tests.support.ragler import (
    API_DOCS,
    COLLECTION,
    DESCRIPTIONS,
    DETAIL,
    FOUND,
    NOWHERE,
    PASSAGE,
    THREE,
    Backend,
    RaglerTools,
    tools_before,
)

SEARCH = "/vector/search"
LIST, INFO = "/collections", f"/collections/{API_DOCS}"


@pytest.fixture
def toolset() -> Toolset:
    return build_toolset("ragler", Services(ServerSettings(home=Path("unused"))))


def published(toolset: Toolset, name: str) -> PublishedTool:
    """Return a tool's entry in the list."""
    return PublishedTool.of(toolset.by_name()[name])


@pytest.mark.requirement("R3", "R16", "R19")
def test_there_are_exactly_three_tools_with_their_descriptions(toolset: Toolset) -> None:
    assert {tool.name: tool.description for tool in toolset.tools} == DESCRIPTIONS
    assert tuple(tool.name for tool in toolset.tools) == THREE
    assert (toolset.server_name, toolset.version) == ("ragler", "1.0.0")


@pytest.mark.requirement("R4", "R5", "R6")
def test_search_knowledge_has_the_documented_parameters(toolset: Toolset) -> None:
    schema = published(toolset, "search_knowledge").input
    assert schema["required"] == ["query"]
    assert list(schema["properties"])[:4] == ["query", "collection_id", "limit", "filters"]
    taken = schema["properties"]
    assert taken["query"]["type"] == "string"
    assert (taken["collection_id"]["type"], taken["collection_id"]["format"]) == ("string", "uuid")
    limit = {key: taken["limit"][key] for key in ("type", "minimum", "maximum", "default")}
    assert limit == {"type": "integer", "minimum": 1, "maximum": 100, "default": 10}


@pytest.mark.requirement("R27", "R30")
async def test_ranking_weights_are_passed_on(backend: Backend, tools: RaglerTools) -> None:
    """An empty set of weights selects the backend's own; without the parameter, no ranking is requested."""
    weights: list[dict[str, Any]] = [
        {},
        {"ranking_weights": {}},
        {"ranking_weights": {"semantic": 0.5, "recency": 0.5}},
    ]
    for arguments in weights:
        await tools.ok("search_knowledge", query="authentication", **arguments)
    without, plain, named = (each.body for each in backend.of(SEARCH))
    assert "ranking" not in without
    assert plain["ranking"] == {"ranking_weights": {}}
    assert named["ranking"] == {"ranking_weights": {"semantic": 0.5, "recency": 0.5}}


@pytest.mark.requirement("R7", "R8", "R9", "R10")
def test_search_knowledge_has_the_documented_filters(toolset: Toolset) -> None:
    filters = published(toolset, "search_knowledge").input["properties"]["filters"]
    assert filters["type"] == "object"
    assert "required" not in filters or filters["required"] == []
    taken = filters["properties"]
    assert list(taken) == ["source_type", "date_from", "date_to", "tags"]
    assert set(taken["source_type"]["enum"]) == {"confluence", "web", "manual"}
    for date in ("date_from", "date_to"):
        assert taken[date]["type"] == "string"
        assert "ISO 8601" in taken[date]["description"]
    assert taken["tags"]["type"] == "array"
    assert taken["tags"]["items"]["type"] == "string"


@pytest.mark.requirement("R16", "R19")
def test_list_collections_and_get_collection_info_have_the_documented_parameters(toolset: Toolset) -> None:
    assert published(toolset, "list_collections").input["properties"] == {}
    schema = published(toolset, "get_collection_info").input
    assert schema["required"] == ["collection_id"]
    taken = schema["properties"]["collection_id"]
    assert taken["description"].startswith("UUID or name of a collection")
    assert (taken["type"], taken["format"]) == ("string", "uuid")


@pytest.mark.requirement("R12", "R13", "R14")
def test_search_knowledge_has_the_documented_result(toolset: Toolset) -> None:
    schema = published(toolset, "search_knowledge").output
    told = schema["properties"]
    assert [told[name]["type"] for name in ("results", "total", "query", "execution_time")] == [
        "array",
        "integer",
        "string",
        "number",
    ]
    assert set(schema["required"]) == {"results", "total", "query", "execution_time"}
    result = told["results"]["items"]["properties"]
    assert [result[name]["type"] for name in ("content", "source_url", "score", "metadata")] == [
        "string",
        "string",
        "number",
        "object",
    ]
    assert (result["score"]["minimum"], result["score"]["maximum"]) == (0, 1)
    metadata = result["metadata"]["properties"]
    texts = ("source_type", "context_breadcrumbs", "heading", "last_modified_by", "last_modified_at")
    assert {metadata[name]["type"] for name in texts} == {"string"}
    assert metadata["tags"]["items"]["type"] == "string"
    assert "type" not in metadata["collection_id"], "it may be null"


@pytest.mark.requirement("R36")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("search_knowledge", {"query": "x"}),
        ("list_collections", {}),
        ("get_collection_info", {"collection_id": API_DOCS}),
    ],
)
async def test_without_a_backend_every_tool_says_what_to_set(
    tmp_path: Path, name: str, arguments: dict[str, Any]
) -> None:
    async with tools_before("http://127.0.0.1:1", tmp_path, ragler_api_key="") as tools:
        told = await tools.refused(name, **arguments)
    assert told["error"] == "not_configured"
    assert told["missing"] == ["RAGLER_API_URL", "RAGLER_API_KEY"]
    assert "RAGLER_API_KEY" in told["message"]
    assert "RAGLER_API_URL" in told["message"]


# --- search_knowledge ------------------------------------------------------------------------------


@pytest.mark.requirement("R1", "R11", "R24")
async def test_a_plain_query_is_one_post_with_the_limit(tools: RaglerTools, backend: Backend) -> None:
    await tools.ok("search_knowledge", query="How do I authenticate?")
    (asked,) = backend.asked
    assert (asked.method, asked.path) == ("POST", SEARCH)
    assert asked.body == {"query": "How do I authenticate?", "limit": 10}


@pytest.mark.requirement("R5", "R11", "R25")
async def test_a_collection_goes_by_its_name_and_its_id(tools: RaglerTools, backend: Backend) -> None:
    filters = {
        "source_type": "confluence",
        "date_from": "2026-01-01",
        "date_to": "2026-01-31T09:30:00Z",
        "tags": ["api", "authentication"],
    }
    await tools.ok("search_knowledge", query="x", collection_id=API_DOCS, limit=5, filters=filters)
    assert [asked.path for asked in backend.asked] == [INFO, SEARCH]
    assert backend.asked[1].body == {
        "query": "x",
        "collectionName": "API Documentation",
        "collectionId": API_DOCS,
        "limit": 5,
        "filters": filters,
    }


@pytest.mark.parametrize("given", [{}, {"source_type": None, "tags": []}, None])
async def test_filters_that_say_nothing_are_not_sent(
    tools: RaglerTools, backend: Backend, given: dict[str, Any] | None
) -> None:
    await tools.ok("search_knowledge", query="x", filters=given, limit=None, collection_id=None)
    assert backend.asked[0].body == {"query": "x", "limit": 10}


@pytest.mark.parametrize("form", [API_DOCS.upper(), API_DOCS.replace("-", "")])
async def test_a_uuid_is_one_however_it_is_written(tools: RaglerTools, backend: Backend, form: str) -> None:
    await tools.ok("search_knowledge", query="x", collection_id=form)
    assert backend.asked[-1].body["collectionId"] == API_DOCS
    assert tools.last.log["collection_id"] == API_DOCS


@pytest.mark.requirement("R8", "R9")
@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("2026-01-31", "2026-01-31"),
        ("20260131", "2026-01-31"),
        ("2026-W05-6", "2026-01-31"),
        ("2026-01-31T09:30:00Z", "2026-01-31T09:30:00Z"),
        ("2026-01-31T09:30:00.123+02:00", "2026-01-31T09:30:00.123+02:00"),
        ("2026-01-31T09:30:00", "2026-01-31T09:30:00Z"),
        ("2026-01-31T09:30", "2026-01-31T09:30:00Z"),
        ("2026-01-31T09", "2026-01-31T09:00:00Z"),
        ("20260131T093000+0200", "2026-01-31T07:30:00Z"),
    ],
)
async def test_dates_in_any_form_of_iso_8601(
    tools: RaglerTools, backend: Backend, given: str, sent: str
) -> None:
    """Dates that every backend reads are sent unchanged, others are converted to that form."""
    await tools.ok("search_knowledge", query="x", filters={"date_from": given})
    assert backend.asked[0].body["filters"] == {"date_from": sent}


@pytest.mark.requirement("R56")
async def test_the_correlation_id_goes_along(tools: RaglerTools, backend: Backend) -> None:
    await tools.ok("search_knowledge", query="x", collection_id=API_DOCS)
    assert [asked.headers["X-Request-ID"] for asked in backend.asked] == ["call-1", "call-1"]


async def test_a_problem_of_the_backend_keeps_its_code_and_parameter(
    tools: RaglerTools, backend: Backend
) -> None:
    problem = {"code": "invalid_parameter", "detail": "A tag has no commas.", "parameter": "filters.tags[0]"}
    backend.answers(SEARCH, problem, 422)
    told = await tools.refused("search_knowledge", query="x", filters={"tags": ["a,b"]})
    assert (told["error"], told["parameter"]) == ("invalid_parameter", "filters.tags[0]")
    assert "A tag has no commas." in told["message"]


@pytest.mark.parametrize(
    ("tool", "arguments", "parameter"),
    [
        ("search_knowledge", {"query": "x", "limit": -1}, "limit"),
        ("search_knowledge", {"query": "x", "limit": 101}, "limit"),
        ("search_knowledge", {"query": "x", "limit": 2.5}, "limit"),
        ("search_knowledge", {"query": " \n"}, "query"),
        ("search_knowledge", {"query": ""}, "query"),
        ("search_knowledge", {"query": "x" * 4_001}, "query"),
        ("search_knowledge", {"query": "x", "collection_id": "uuid-api-docs"}, "collection_id"),
        ("search_knowledge", {"query": "x", "collection_id": "../../admin"}, "collection_id"),
        ("search_knowledge", {"query": "x", "filters": {"source_type": "email"}}, "filters.source_type"),
        ("search_knowledge", {"query": "x", "filters": {"author": "me"}}, "filters.author"),
        ("search_knowledge", {"query": "x", "filters": {"tags": "[api"}}, "filters.tags"),
        ("search_knowledge", {"query": "x", "filters": {"tags": [""]}}, "filters.tags[0]"),
        ("search_knowledge", {"query": "x", "filters": {"tags": ["collection:memory"]}}, "filters.tags"),
        ("search_knowledge", {"query": "x", "collection": "memory"}, "collection"),
        ("search_knowledge", {"query": "x", "limit": True}, "limit"),
        ("search_knowledge", {}, "query"),
        ("get_collection_info", {}, "collection_id"),
        ("get_collection_info", {"collection_id": ""}, "collection_id"),
        ("get_collection_info", {"collection_id": 5}, "collection_id"),
        ("get_collection_info", {"collection_id": API_DOCS, "more": 1}, "more"),
        ("list_collections", {"page": 2}, "page"),
    ],
)
async def test_an_invalid_argument_is_refused_with_its_parameter(
    tools: RaglerTools, backend: Backend, tool: str, arguments: dict[str, Any], parameter: str
) -> None:
    """A value out of range is refused, not clamped."""
    told = await tools.refused(tool, **arguments)
    missing = parameter in ("query", "collection_id") and parameter not in arguments
    assert told["error"] == ("missing_required_parameter" if missing else "invalid_parameter")
    assert told["parameter"] == parameter
    assert backend.asked == []


@pytest.mark.parametrize("arguments", [{"query": "\ud800"}, {"query": "x", "filters": {"tags": ["\udfff"]}}])
async def test_half_a_surrogate_pair_is_told(
    tools: RaglerTools, backend: Backend, arguments: dict[str, Any]
) -> None:
    """No backend could read it."""
    assert (await tools.refused("search_knowledge", **arguments))["error"] == "invalid_parameter"
    assert backend.asked == []


@pytest.mark.requirement("R8", "R9")
@pytest.mark.parametrize(
    "date",
    [
        *("yesterday", "31.01.2026", "2026", "1769850000", " ", "２０２６-01-31"),
        *("2026-13-01", "2026-02-30", "2026-01-31 09:30", "2026-01-31T25:00"),
        *("2026-01-31T09:30:00+99:00", "0001-01-01T00:00+01:00"),
    ],
)
@pytest.mark.parametrize("end", ["date_from", "date_to"])
async def test_an_invalid_date_is_refused_with_an_example(
    tools: RaglerTools, backend: Backend, end: str, date: str
) -> None:
    told = await tools.refused("search_knowledge", query="x", filters={end: date})
    assert (told["error"], told["parameter"]) == ("invalid_parameter", f"filters.{end}")
    assert "2026-01-31T09:30:00Z" in told["message"]
    assert backend.asked == []


async def test_a_span_that_ends_before_it_begins_is_a_contradiction(tools: RaglerTools) -> None:
    """A single day is valid, whatever the time of its first moment."""
    day = {"date_from": "2026-01-31T09:30:00Z", "date_to": "2026-01-31"}
    await tools.ok("search_knowledge", query="x", filters=day)
    told = await tools.refused(
        "search_knowledge", query="x", filters={"date_from": "2026-02-01", "date_to": "2026-01-31"}
    )
    assert (told["error"], told["parameter"]) == ("contradiction", "filters.date_to")


@pytest.mark.requirement("R12", "R13", "R14", "R15")
async def test_the_answer_is_the_documents(tools: RaglerTools) -> None:
    told = await tools.ok("search_knowledge", query="How?", collection_id=API_DOCS)
    assert told == {
        "results": [{**PASSAGE, "metadata": {"collection_id": API_DOCS, **PASSAGE["metadata"]}}],
        "total": 12,
        "query": "How?",
        "execution_time": 41,
    }


async def test_members_absent_from_a_search_result_stay_absent(tools: RaglerTools, backend: Backend) -> None:
    sparse = {"content": "x", "score": 1.0000001, "vector": [1, 2], "metadata": {"heading": None, "x": 1}}
    bare = {"content": "y", "score": -0.1, "source_url": None}
    backend.answers(SEARCH, {"results": [sparse, bare], "took": 3})
    told = await tools.ok("search_knowledge", query="x")
    nowhere = {"metadata": {"collection_id": None}}
    assert told["results"] == [
        {"content": "x", "score": 1.0, **nowhere},
        {"content": "y", "score": 0.0, **nowhere},
    ]
    assert told["total"] == 2
    assert told["execution_time"] > 0


@pytest.mark.parametrize(
    ("length", "found", "limit", "shown"),
    [(10, 30, 3, 3), (1_500, 100, 100, 100), (MAX_CHARS // 4, 10, 10, 3)],
)
async def test_as_many_are_shown_as_were_asked_for_and_fit(
    tools: RaglerTools, backend: Backend, length: int, found: int, limit: int, shown: int
) -> None:
    """The limit also holds if the backend ignores it, and the largest limit is useful."""
    backend.answers(SEARCH, {**FOUND, "results": [{**PASSAGE, "content": "ä" * length}] * found})
    told = await tools.ok("search_knowledge", query="x", limit=limit)
    assert (len(told["results"]), told.get("omitted", 0)) == (shown, limit - shown)
    assert (f"{limit - shown} more results were left out" in told.get("hint", "")) is (shown < limit)
    assert tools.last.log["result_count"] == shown


@pytest.mark.parametrize("char", ["x", "\u0001", "\U0001f41d"])
async def test_a_single_passage_over_the_bound_is_cut_and_says_so(
    tools: RaglerTools, backend: Backend, char: str
) -> None:
    backend.answers(SEARCH, {**FOUND, "results": [{**PASSAGE, "content": char * 2 * MAX_CHARS}]})
    result = await tools.call("search_knowledge", {"query": "x"})
    assert len(result["content"][0]["text"]) <= MAX_CHARS + 1_000
    (passage,) = result["structuredContent"]["results"]
    assert passage["truncated"] is True
    assert len(passage["content"]) > MAX_CHARS // 10
    assert "source_url" in result["structuredContent"]["hint"]


async def test_a_passage_whose_metadata_is_too_long_is_left_out(tools: RaglerTools, backend: Backend) -> None:
    backend.answers(SEARCH, {**FOUND, "results": [{**PASSAGE, "source_url": "x" * MAX_CHARS}]})
    told = await tools.ok("search_knowledge", query="x")
    assert (told["results"], told["omitted"]) == ([], 1)


async def test_a_name_is_asked_for_once_in_five_minutes(tools: RaglerTools, backend: Backend) -> None:
    """Then the request is repeated, because the name may have changed."""
    for _ in range(3):
        await tools.ok("search_knowledge", query="x", collection_id=API_DOCS)
    assert len(backend.of(INFO)) == 1
    backend.answers(INFO, {**DETAIL, "name": "Other"})
    tools.time.seconds += KEPT_SECONDS
    await tools.ok("search_knowledge", query="x", collection_id=API_DOCS)
    assert backend.asked[-1].body["collectionName"] == "Other"


@pytest.mark.parametrize(
    ("tool", "arguments"), [("list_collections", {}), ("get_collection_info", {"collection_id": API_DOCS})]
)
async def test_the_other_tools_bring_names(
    tools: RaglerTools, backend: Backend, tool: str, arguments: dict[str, Any]
) -> None:
    """An agent that looked first costs no further request."""
    await tools.ok(tool, **arguments)
    backend.asked.clear()
    await tools.ok("search_knowledge", query="x", collection_id=API_DOCS)
    assert [asked.path for asked in backend.asked] == [SEARCH]


async def test_concurrent_searches_share_one_request_for_the_collection(
    tools: RaglerTools, backend: Backend
) -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def slow(_request: web.Request) -> web.Response:
        asked.set()
        await go.wait()
        return web.json_response(DETAIL)

    backend.does(INFO, slow)
    searches = [
        asyncio.create_task(tools.ok("search_knowledge", query="x", collection_id=API_DOCS)) for _ in range(5)
    ]
    await asked.wait()
    searches[0].cancel()
    go.set()
    told = await asyncio.gather(*searches, return_exceptions=True)
    assert [isinstance(each, dict) for each in told] == [False, True, True, True, True]
    assert len(backend.of(INFO)) == 1


async def test_a_collection_that_is_not_there_is_asked_for_again(
    tools: RaglerTools, backend: Backend
) -> None:
    """It may be created in the meantime."""
    for _ in range(2):
        told = await tools.refused("search_knowledge", query="x", collection_id=NOWHERE)
        assert (told["error"], told["collection_id"]) == ("not_found", NOWHERE)
    backend.answers(f"/collections/{NOWHERE}", {**COLLECTION, "id": NOWHERE})
    await tools.ok("search_knowledge", query="x", collection_id=NOWHERE)


async def test_a_name_that_the_search_does_not_know_is_forgotten(
    tools: RaglerTools, backend: Backend
) -> None:
    await tools.ok("search_knowledge", query="x", collection_id=API_DOCS)
    backend.answers("/collections", {"collections": []})
    backend.answers(SEARCH, {"message": "gone"}, 404)
    assert (await tools.refused("search_knowledge", query="x", collection_id=API_DOCS))["error"] == (
        "not_found"
    )
    backend.answers(INFO, {"message": "gone"}, 404)
    await tools.refused("search_knowledge", query="x", collection_id=API_DOCS)
    assert len(backend.of(INFO)) == 2


async def test_a_collection_is_told_of_by_its_name(tools: RaglerTools, backend: Backend) -> None:
    told = await tools.ok("get_collection_info", collection_id=COLLECTION["name"])
    assert told == await tools.ok("get_collection_info", collection_id=API_DOCS)
    assert [asked.path for asked in backend.asked] == ["/collections", INFO, INFO]
    assert tools.last.log["collection_id"] == API_DOCS


@pytest.mark.parametrize("count", [0, 1, MOST_NAMED + 2])
async def test_an_unknown_name_is_answered_as_an_unknown_id_with_the_known_names(
    tools: RaglerTools, backend: Backend, count: int
) -> None:
    names = [f"name-{number:02}" for number in range(count)]
    backend.answers("/collections", {"collections": [{**COLLECTION, "name": name} for name in names]})
    by_id = await tools.refused("get_collection_info", collection_id=NOWHERE)
    by_name = await tools.refused("get_collection_info", collection_id="../../admin")
    assert (by_name["error"], by_name["collection_id"]) == (by_id["error"], "../../admin")
    assert by_name.keys() == by_id.keys()
    assert by_name["message"].startswith("There is no collection '../../admin'. There ")
    assert all(name in by_name["message"] for name in names[:MOST_NAMED])
    assert (" and 2 more." in by_name["message"]) is (count > MOST_NAMED)


@pytest.mark.requirement("R58", "R59", "R60")
async def test_query_collection_and_count(tools: RaglerTools) -> None:
    await tools.ok("search_knowledge", query="login of anna@company.com", collection_id=API_DOCS)
    assert tools.last.log == {"query": "login of ***", "collection_id": API_DOCS, "result_count": 1}


async def test_a_failed_search_is_logged_with_query_and_collection(tools: RaglerTools) -> None:
    await tools.refused("search_knowledge", query="x", collection_id=NOWHERE)
    assert tools.last.log == {"query": "x", "collection_id": NOWHERE}


@pytest.mark.requirement("R66")
async def test_results_are_counted_by_collection(tools: RaglerTools) -> None:
    """The label is `all` without a collection; a list of collections is not a search."""
    await tools.ok("search_knowledge", query="x")
    await tools.ok("search_knowledge", query="x", collection_id=API_DOCS)
    await tools.ok("list_collections")
    counted = [line for line in tools.metrics.render().splitlines() if "search_results_count{" in line]
    assert counted == [
        'mcp_search_results_count{collection_id="all"} 1.0',
        f'mcp_search_results_count{{collection_id="{API_DOCS}"}} 1.0',
    ]


# --- list_collections and get_collection_info ------------------------------------------------------


@pytest.mark.requirement("R16", "R17", "R18")
async def test_the_list_is_the_backends(tools: RaglerTools, backend: Backend) -> None:
    assert await tools.ok("list_collections") == {"collections": [COLLECTION]}
    (asked,) = backend.asked
    assert (asked.method, asked.path, asked.body) == ("GET", LIST, None)


@pytest.mark.requirement("R20", "R21", "R22", "R23")
async def test_the_info_is_the_backends(tools: RaglerTools, backend: Backend) -> None:
    assert await tools.ok("get_collection_info", collection_id=API_DOCS) == DETAIL
    (asked,) = backend.asked
    assert (asked.method, asked.path, asked.body) == ("GET", INFO, None)
    assert tools.last.log == {"collection_id": API_DOCS}


@pytest.mark.requirement("R22")
async def test_members_absent_from_a_collection_stay_absent(tools: RaglerTools, backend: Backend) -> None:
    sparse: dict[str, Any] = {
        "id": API_DOCS,
        "name": "API",
        "description": None,
        "statistics": {"total_tokens": 5},
        "acl": [],
    }
    backend.answers(INFO, sparse)
    backend.answers(LIST, {"collections": [sparse], "page": 1})
    assert await tools.ok("list_collections") == {"collections": [{"id": API_DOCS, "name": "API"}]}
    assert await tools.ok("get_collection_info", collection_id=API_DOCS) == {
        "id": API_DOCS,
        "name": "API",
        "statistics": {"total_tokens": 5},
    }


async def test_a_list_that_is_too_long_says_what_is_not_here(tools: RaglerTools, backend: Backend) -> None:
    long = {**COLLECTION, "description": "x" * (MAX_CHARS // 4)}
    backend.answers(LIST, {"collections": [long] * 10})
    told = await tools.ok("list_collections")
    assert (len(told["collections"]), told["omitted"]) == (3, 7)
    assert "7 more collections were left out" in told["hint"]


async def test_a_description_that_is_too_long_is_cut_and_says_so(
    tools: RaglerTools, backend: Backend
) -> None:
    backend.answers(INFO, {**DETAIL, "description": "x" * (MAX_DESCRIPTION_CHARS + 1)})
    told = await tools.ok("get_collection_info", collection_id=API_DOCS)
    assert told == {**DETAIL, "description": "x" * MAX_DESCRIPTION_CHARS, "truncated": True}


@pytest.mark.requirement("R67")
async def test_a_collection_that_is_not_there_is_not_found(tools: RaglerTools) -> None:
    told = await tools.refused("get_collection_info", collection_id=NOWHERE)
    assert (told["error"], told["collection_id"]) == ("not_found", NOWHERE)
    assert "list_collections" in told["message"]
    counted = 'mcp_errors_total{tool="get_collection_info",error_type="not_found"} 1'
    assert counted in tools.metrics.render()
