"""Results that ask back: `InputRequiredResult` of 2026-07-28, and the answers a caller retries with.

The server keeps nothing between the rounds. What it must remember travels as `requestState`, sealed by
the SDK's boundary, so a caller can neither read nor change it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mcp_types import (
    CallToolRequestParams,
    ClientCapabilities,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    GetPromptRequestParams,
    InputRequiredResult,
    ListRootsRequest,
    ListRootsResult,
    SamplingMessage,
    TextContent,
)

InputRequest = ElicitRequest | CreateMessageRequest | ListRootsRequest
Answers = Mapping[str, Any]

_ANSWER_TO: dict[type[InputRequest], type[Any]] = {
    ElicitRequest: ElicitResult,
    CreateMessageRequest: CreateMessageResult,
    ListRootsRequest: ListRootsResult,
}


def form(message: str, **fields: str) -> ElicitRequest:
    """Ask the user for required `fields`, given with their JSON types."""
    schema = {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in fields.items()},
        "required": list(fields),
    }
    return ElicitRequest(
        method="elicitation/create",
        params=ElicitRequestFormParams(mode="form", message=message, requested_schema=schema),
    )


def sampling(prompt: str, max_tokens: int) -> CreateMessageRequest:
    """Ask the caller's model."""
    message = SamplingMessage(role="user", content=TextContent(type="text", text=prompt))
    return CreateMessageRequest(
        method="sampling/createMessage",
        params=CreateMessageRequestParams(messages=[message], max_tokens=max_tokens),
    )


def roots() -> ListRootsRequest:
    """Ask for the caller's roots."""
    return ListRootsRequest(method="roots/list")


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked in one round, the state that travels along, and what is made of the answers."""

    requests: Mapping[str, InputRequest]
    conclude: Callable[[Answers], str]
    state: str | None = None

    def ask(self) -> InputRequiredResult:
        """The result that asks."""
        return InputRequiredResult(
            result_type="input_required", input_requests=dict(self.requests), request_state=self.state
        )

    def answered(self, params: CallToolRequestParams | GetPromptRequestParams) -> str | None:
        """The conclusion, or None where an answer or the state is missing; further answers are ignored."""
        given = params.input_responses or {}
        fits = all(
            isinstance(given.get(key), _ANSWER_TO[type(request)]) for key, request in self.requests.items()
        )
        return self.conclude(given) if fits and params.request_state == self.state else None


def supported(requests: Mapping[str, InputRequest], declared: ClientCapabilities) -> dict[str, InputRequest]:
    """The requests that a caller with the `declared` capabilities can answer."""
    able = {
        ElicitRequest: declared.elicitation is not None,
        CreateMessageRequest: declared.sampling is not None,
        ListRootsRequest: declared.roots is not None,
    }
    return {key: request for key, request in requests.items() if able[type(request)]}


def _said(answer: CreateMessageResult) -> str:
    return answer.content.text if isinstance(answer.content, TextContent) else answer.content.type


def _field(answer: ElicitResult, name: str) -> str:
    return str((answer.content or {}).get(name))


NAME = Question(
    {"user_name": form("What is your name?", name="string")},
    lambda answers: f"Hello, {_field(answers['user_name'], 'name')}!",
)
CAPITAL = Question(
    {"capital_question": sampling("What is the capital of France?", 100)},
    lambda answers: _said(answers["capital_question"]),
)
ROOTS = Question(
    {"client_roots": roots()},
    lambda answers: "Roots: " + ", ".join(str(root.uri) for root in answers["client_roots"].roots),
)
CONFIRM = Question(
    {"confirm": form("Please confirm", ok="boolean")},
    lambda _answers: "state-ok: the state came back as it went",
    state="awaiting-confirmation",
)
EVERYTHING = Question(
    {
        "user_name": form("What is your name?", name="string"),
        "greeting": sampling("Generate a greeting", 50),
        "client_roots": roots(),
    },
    lambda answers: f"{_said(answers['greeting'])} {_field(answers['user_name'], 'name')}",
    state="awaiting-all",
)
FIRST_STEP = Question(
    {"step1": form("Step 1: What is your name?", name="string")},
    lambda answers: _field(answers["step1"], "name"),
    state="step-1",
)
CONTEXT = Question(
    {"user_context": form("What context should the prompt use?", context="string")},
    lambda answers: _field(answers["user_context"], "context"),
)


def second_step(name: str) -> Question:
    """What follows the first step; the name it gave travels in the state."""
    return Question(
        {"step2": form("Step 2: What is your favorite color?", color="string")},
        lambda answers: f"{name} likes {_field(answers['step2'], 'color')}.",
        state=f"step-2:{name}",
    )
