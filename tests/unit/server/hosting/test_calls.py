"""A call of a tool: its answer, its one log line at the end, and its count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from kb_config.logs import fields_of
from kb_server.hosting.calls import BrokenToolError, Calls, UnknownToolError
from kb_server.observability.metrics import Metrics
from kb_server.tool import Annotations, Call, Tool, ToolError, Toolset


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    """What the tool takes."""

    query: str


class Found(msgspec.Struct):
    """What the tool finds."""

    results: list[str]


Work = Callable[[Arguments, Call], Coroutine[Any, Any, Found]]


class FindThingsTool(Tool[Arguments, Found]):
    """Does what the test says."""

    name = "find_things"
    title = "Find"
    description = "Finds things."
    annotations = Annotations(read_only=True)
    arguments = Arguments
    result = Found

    def __init__(self, work: Work) -> None:
        self.run = work  # type: ignore[assignment, method-assign]

    async def run(self, arguments: Arguments, call: Call) -> Found:
        raise NotImplementedError


def calls(work: Work, metrics: Metrics | None = None) -> Calls:
    """A toolset of one tool."""
    toolset = Toolset("t", "t", "1", "t", "", (FindThingsTool(work),))
    return Calls(toolset, metrics or Metrics())


async def found(arguments: Arguments, call: Call) -> Found:
    """Finds one thing, as a search logs it."""
    call.log |= {"result_count": 1, "collection_id": "c1"}
    return Found([arguments.query])


async def lacking(_arguments: Arguments, _call: Call) -> Found:
    """Fails for the caller to mend."""
    raise ToolError("not_found", "There is none.")


async def breaking(_arguments: Arguments, _call: Call) -> Found:
    """Breaks."""
    raise ZeroDivisionError("within")


@pytest.mark.requirement("F38")
async def test_a_call_is_announced_with_both_forms_of_its_name_and_logged_once_at_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    await calls(found).outcome("find_things", {"query": "q"}, Call("corr"))
    start, end = caplog.records
    assert start.getMessage() == "Executing tool find_things (FindThingsTool)"
    assert end.levelname == "INFO"
    told = fields_of(end)
    assert told["response_time"] >= 0
    assert {key: told[key] for key in ("tool", "status", "correlation_id", "result_count")} == {
        "tool": "find_things",
        "status": "success",
        "correlation_id": "corr",
        "result_count": 1,
    }


async def test_an_error_for_the_caller_is_a_warning_with_its_code(caplog: pytest.LogCaptureFixture) -> None:
    """Its message may hold what the caller sent, so it stays out."""
    caplog.set_level("INFO")
    answer = (await calls(lacking).outcome("find_things", {"query": "q"}, Call())).as_result()
    assert answer["isError"] is True
    assert caplog.records[-1].levelname == "WARNING"
    assert fields_of(caplog.records[-1])["error"] == "not_found"
    assert "There is none" not in caplog.text


@pytest.mark.parametrize(
    ("arguments", "parameter"), [({"query": 7}, "query"), ({"query": "q", "x": 1}, None)]
)
async def test_what_does_not_fit_is_logged_with_the_parameter(
    arguments: dict[str, Any], parameter: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    await calls(found).outcome("find_things", arguments, Call())
    record = caplog.records[-1]
    assert record.levelname == "WARNING"
    assert fields_of(record).get("parameter") == parameter


async def test_a_call_of_no_tool_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """It never got as far as a tool."""
    with pytest.raises(UnknownToolError):
        await calls(found).outcome("find_nothing", {}, Call())
    assert fields_of(caplog.records[-1])["error"] == "unknown_tool"
    assert caplog.records[-1].levelname == "WARNING"


async def test_a_fault_is_logged_with_its_traceback_and_told_without_its_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The caller gets the correlation id to ask about."""
    with pytest.raises(BrokenToolError) as caught:
        await calls(breaking).outcome("find_things", {"query": "q"}, Call("corr"))
    assert caught.value.error.data["correlation_id"] == "corr"
    assert "within" not in str(caught.value)
    record = caplog.records[-1]
    assert record.levelname == "ERROR"
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


async def test_a_result_that_cannot_be_written_is_a_fault() -> None:
    async def unwritable(_arguments: Arguments, _call: Call) -> Found:
        return Found(["\ud800"])

    with pytest.raises(BrokenToolError):
        await calls(unwritable).outcome("find_things", {"query": "q"}, Call())


async def test_an_unknown_tool_is_answered_with_the_known_and_counted_under_no_name_of_its_own() -> None:
    metrics = Metrics()
    with pytest.raises(UnknownToolError, match="find_things"):
        await calls(found, metrics).outcome("x" * 1000, {}, Call())
    assert 'mcp_errors_total{tool="unknown_tool",error_type="unknown_tool"} 1' in metrics.render()


async def test_each_end_is_counted() -> None:
    metrics = Metrics()
    await calls(found, metrics).outcome("find_things", {"query": "q"}, Call())
    await calls(lacking, metrics).outcome("find_things", {"query": "q"}, Call())
    await calls(found, metrics).outcome("find_things", {}, Call())
    with pytest.raises(BrokenToolError):
        await calls(breaking, metrics).outcome("find_things", {"query": "q"}, Call())
    text = metrics.render()
    assert 'mcp_requests_total{tool="find_things",status="success"} 1' in text
    assert 'mcp_search_results_count{collection_id="c1"} 1' in text
    for error_type in ("not_found", "missing_required_parameter", "internal_error"):
        assert f'mcp_errors_total{{tool="find_things",error_type="{error_type}"}} 1' in text


async def test_a_cancelled_call_stays_cancelled_and_is_counted_as_such(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The cancellation is neither swallowed nor taken for a fault."""
    caplog.set_level("INFO")
    metrics = Metrics()
    started = asyncio.Event()

    async def waiting(_arguments: Arguments, _call: Call) -> Found:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError

    task = asyncio.ensure_future(calls(waiting, metrics).outcome("find_things", {"query": "q"}, Call()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert 'error_type="cancelled"} 1' in metrics.render()
    assert caplog.records[-1].levelname == "INFO"
