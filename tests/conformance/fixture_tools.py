"""The fixture's tools, by the names that the conformance suite calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import PromptsListChanged, SubscriptionBus, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolRequestParams,
    CallToolResult,
    ClientCapabilities,
    ContentBlock,
    InputRequiredResult,
)

from mcp_aiohttp.protocol.caller import Caller
from tests.conformance import fixture_inputs as inputs
from tests.conformance.fixture_content import SCHEMA_2020_12, audio, embedded, image, text

Context = ServerRequestContext[None, Caller]
Result = CallToolResult | InputRequiredResult
Run = Callable[[Context, CallToolRequestParams], Awaitable[Result]]

_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}
_ROUTED: dict[str, Any] = {
    "type": "object",
    "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
}


@dataclass(frozen=True, slots=True)
class FixtureTool:
    """One tool."""

    name: str
    description: str
    run: Run
    schema: dict[str, Any] = field(default_factory=_NO_ARGUMENTS.copy)


def tools(bus: SubscriptionBus) -> list[FixtureTool]:
    """All of them; changes of the lists are published on `bus`."""
    return [
        FixtureTool(
            "test_simple_text", "Answers with a text.", _content(text("This is a simple text response."))
        ),
        FixtureTool("test_image_content", "Answers with a picture.", _content(image())),
        FixtureTool("test_audio_content", "Answers with a sound.", _content(audio())),
        FixtureTool("test_embedded_resource", "Answers with a resource.", _content(_resource())),
        FixtureTool("test_multiple_content_types", "Answers with all kinds.", _content(*_mixed())),
        FixtureTool("test_error_handling", "Always fails.", _fail),
        FixtureTool("test_tool_with_logging", "Logs three lines.", _log_thrice),
        FixtureTool("test_logging_tool", "Logs three lines.", _log_thrice),
        FixtureTool("test_tool_with_progress", "Reports progress three times.", _progress),
        FixtureTool("test_missing_capability", "Needs a caller that can sample.", _needs_sampling),
        FixtureTool("test_streaming_elicitation", "Reports progress, then asks.", _progress_then_ask),
        FixtureTool(
            "json_schema_2020_12_tool",
            "Has a schema of every keyword.",
            _content(text("Valid.")),
            SCHEMA_2020_12,
        ),
        FixtureTool("test_parameter_header", "Is routed by a header.", _content(text("Routed.")), _ROUTED),
        FixtureTool("test_trigger_tool_change", "Changes the tools.", _publishing(bus, ToolsListChanged())),
        FixtureTool(
            "test_trigger_prompt_change", "Changes the prompts.", _publishing(bus, PromptsListChanged())
        ),
        *_asking(),
    ]


def _asking() -> list[FixtureTool]:
    prefix = "test_input_required_result_"
    questions = {
        "elicitation": inputs.NAME,
        "sampling": inputs.CAPITAL,
        "list_roots": inputs.ROOTS,
        "request_state": inputs.CONFIRM,
        "tampered_state": inputs.CONFIRM,
        "multiple_inputs": inputs.EVERYTHING,
    }
    return [
        *(
            FixtureTool(prefix + name, "Asks before it answers.", _asks(question))
            for name, question in questions.items()
        ),
        FixtureTool(prefix + "multi_round", "Asks twice.", _asks_twice),
        FixtureTool(prefix + "capabilities", "Asks only what the caller can answer.", _asks_what_it_can),
    ]


def _done(*content: ContentBlock) -> CallToolResult:
    return CallToolResult(content=list(content))


def _content(*content: ContentBlock) -> Run:
    async def run(_context: Context, _params: CallToolRequestParams) -> Result:
        return _done(*content)

    return run


def _resource() -> ContentBlock:
    return embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")


def _mixed() -> tuple[ContentBlock, ...]:
    data = embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
    return text("Multiple content types test:"), image(), data


async def _fail(_context: Context, _params: CallToolRequestParams) -> Result:
    words = "This tool intentionally returns an error for testing"
    return CallToolResult(content=[text(words)], is_error=True)


async def _log_thrice(context: Context, _params: CallToolRequestParams) -> Result:
    for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await context.session.send_log_message("info", line, related_request_id=context.request_id)
    return _done(text("Logged."))


async def _progress(context: Context, _params: CallToolRequestParams) -> Result:
    for done in (0, 50, 100):
        await context.session.report_progress(done, 100)
    return _done(text("Done."))


async def _needs_sampling(context: Context, _params: CallToolRequestParams) -> Result:
    if _declared(context).sampling is None:
        missing: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, "This tool needs sampling", missing)
    return _done(text("The caller can sample."))


async def _progress_then_ask(context: Context, params: CallToolRequestParams) -> Result:
    await context.session.report_progress(1, 2)
    return await _asks(inputs.NAME)(context, params)


def _publishing(bus: SubscriptionBus, event: ToolsListChanged | PromptsListChanged) -> Run:
    async def run(_context: Context, _params: CallToolRequestParams) -> Result:
        await bus.publish(event)
        return _done(text("Changed."))

    return run


def _asks(question: inputs.Question) -> Run:
    async def run(_context: Context, params: CallToolRequestParams) -> Result:
        conclusion = question.answered(params)
        return question.ask() if conclusion is None else _done(text(conclusion))

    return run


async def _asks_twice(context: Context, params: CallToolRequestParams) -> Result:
    name = inputs.FIRST_STEP.answered(params)
    if name is not None:
        return inputs.second_step(name).ask()
    step, _, name = (params.request_state or "").partition(":")
    question = inputs.second_step(name) if step == "step-2" else inputs.FIRST_STEP
    return await _asks(question)(context, params)


async def _asks_what_it_can(context: Context, params: CallToolRequestParams) -> Result:
    able = inputs.supported(inputs.EVERYTHING.requests, _declared(context))
    question = inputs.Question(able, lambda answers: f"Answered: {', '.join(answers)}")
    return await _asks(question)(context, params)


def _declared(context: Context) -> ClientCapabilities:
    return context.session.client_capabilities or ClientCapabilities()
