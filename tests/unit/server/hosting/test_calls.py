"""A call of a tool: its result, its one log line at the end, and its count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_config.logs import fields_of
from kb_server.hosting.calls import BrokenToolError, Calls, UnknownToolError, correlation_id, new_call
from kb_server.observability.metrics import Metrics
from kb_server.tool import Annotations, Call, Tool, ToolError, Toolset
from mcp_aiohttp.protocol.caller import Caller, digest


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    query: str


class Found(msgspec.Struct):
    results: list[str]


Work = Callable[[Arguments, Call], Coroutine[Any, Any, Found]]


class FindThingsTool(Tool[Arguments, Found]):
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
    toolset = Toolset("t", "t", "1", "t", "", (FindThingsTool(work),))
    return Calls(toolset, metrics or Metrics())


async def found(arguments: Arguments, call: Call) -> Found:
    call.log |= {"result_count": 1, "collection_id": "c1"}
    return Found([arguments.query])


async def lacking(_arguments: Arguments, _call: Call) -> Found:
    raise ToolError("not_found", "There is none.")


async def breaking(_arguments: Arguments, _call: Call) -> Found:
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
    """Its message may contain the caller's data, so it is not logged."""
    caplog.set_level("INFO")
    answer = (await calls(lacking).outcome("find_things", {"query": "q"}, Call())).as_result()
    assert answer["isError"] is True
    assert caplog.records[-1].levelname == "WARNING"
    assert fields_of(caplog.records[-1])["error"] == "not_found"
    assert "There is none" not in caplog.text


@pytest.mark.parametrize(
    ("arguments", "parameter"), [({"query": 7}, "query"), ({"query": "q", "x": 1}, None)]
)
async def test_an_invalid_argument_is_logged_with_its_parameter(
    arguments: dict[str, Any], parameter: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    await calls(found).outcome("find_things", arguments, Call())
    record = caplog.records[-1]
    assert record.levelname == "WARNING"
    assert fields_of(record).get("parameter") == parameter


async def test_a_call_of_no_tool_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UnknownToolError):
        await calls(found).outcome("find_nothing", {}, Call())
    assert fields_of(caplog.records[-1])["error"] == "unknown_tool"
    assert caplog.records[-1].levelname == "WARNING"


async def test_a_fault_is_logged_with_its_traceback_and_told_without_its_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
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


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("meta", "headers", "expected"),
    [
        ({"correlation_id": "a", "traceparent": TRACEPARENT}, {"X-Request-ID": "d"}, "a"),
        ({"traceparent": TRACEPARENT}, {"X-Correlation-ID": "c"}, TRACE),
        ({}, {"traceparent": TRACEPARENT, "X-Correlation-ID": "c"}, TRACE),
        (None, {"X-Correlation-ID": "c", "X-Request-ID": "d"}, "c"),
        (None, {"X-Request-ID": "d"}, "d"),
        ({"correlation_id": 5, "traceparent": 7}, {"X-Request-ID": "d"}, "d"),
        ({"traceparent": "00-zz-1-1"}, {"X-Request-ID": "d"}, "d"),
        ({"traceparent": f"00-{'0' * 32}-00f067aa0ba902b7-01"}, {"X-Request-ID": "d"}, "d"),
        ({"correlation_id": " \n"}, {"X-Request-ID": "d"}, "d"),
    ],
)
def test_the_callers_own_id_is_kept_in_the_decided_order(
    meta: dict[str, Any] | None, headers: dict[str, str], expected: str
) -> None:
    assert correlation_id(meta, Caller(headers=headers)) == expected


def test_a_caller_without_an_id_gets_a_new_one() -> None:
    assert correlation_id(None, Caller()) != correlation_id(None, Caller())


def test_callers_are_told_apart_by_key_and_address() -> None:
    callers = [Caller("k1", {}, "192.0.2.1"), Caller("k1", {}, "192.0.2.2"), Caller("k2", {}, "192.0.2.1")]
    users = [new_call(None, caller).user for caller in callers]
    assert len(set(users)) == 3
    assert users == [new_call(None, caller).user for caller in callers]
    assert not any("192.0.2" in user or "k1" in user for user in users)


@given(st.text())
def test_an_id_is_safe_to_pass_on_in_a_header(sent: str) -> None:
    passed = correlation_id({"correlation_id": sent}, Caller())
    assert 1 <= len(passed) <= 128
    assert passed.isascii()
    assert passed.isprintable()
    assert " " not in passed


@given(st.text())
def test_a_digest_tells_tokens_apart_without_holding_them(token: str) -> None:
    assert len(digest(token)) == 16
    assert digest(token) != digest(token + "x")
