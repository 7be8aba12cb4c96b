"""From a fault of the engine to the error that an agent sees: the mechanism, and the words that name no tool.

Each toolset has its own module `errors`, which adds what only it can say, such as the tool to call next. The
engine's client knows faults alone, and neither tools nor agents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kb_server.engine_client.errors import EngineFault, EngineUnreachable, Refused
from kb_server.engine_client.port import REQUEST_ID, TRACE, USER
from kb_server.tool import Call, ToolError

MESSAGES: Mapping[str, str] = {
    "engine_unreachable": (
        "The engine is unreachable at {url}: {detail}. Check that it runs and that KB_ENGINE_URL is right; "
        "then try again."
    ),
    "engine_timeout": "The engine took the request and then kept silent. {detail} Try again.",
    "engine_unauthorized": (
        "The engine refused the server's KB_API_KEY; whoever runs the server must set it to the engine's key."
    ),
    "engine_too_old": "{detail} Whoever runs the engine must upgrade it.",
    "engine_busy": "The engine is busy: {detail} Try again in {wait}.",
    "engine_failed": "The engine failed: {detail} Try again; its log says more.",
    "engine_bad_answer": (
        "What answers at KB_ENGINE_URL does not behave like an engine of this version. {detail} Whoever runs "
        "the server must check that setting, and any proxy between the two."
    ),
    "engine_refused": "The engine refused the request: {detail}",
    "document_not_found": "{document} was not found.",
    "job_not_found": "{job} was not found.",
    "job_finished": "{job} has ended already and cannot be cancelled.",
    "job_not_retryable": "{job}: {detail}",
    "tag_not_found": "{document} does not carry this tag.",
    "version_conflict": "{document} has changed in the meantime. Read it again, then repeat.",
    "storage_full": "The engine has no space left: {detail} Remove documents, or ask whoever runs it.",
    "embedder_unavailable": "The engine cannot load its embedding model: {detail}",
    "in_progress": "The engine is still at work on this very request. Try again in a moment.",
}
"""By the fault's code, or by the reason of a refusal; a refusal for another one is `engine_refused`."""

_FLATTENED = "filters."
"""Stands before parameters that the engine takes in an object and the tools take flat."""

_PUBLIC_MEMBERS = ("parameter", "current_version")


@contextmanager
def reported(call: Call, to_error: Callable[[EngineFault], ToolError]) -> Iterator[None]:
    """Call the engine for `call`: its id, its trace and whom it is for go along, and a fault comes out as
    the `ToolError` that `to_error` makes of it."""
    request_id, trace = REQUEST_ID.set(call.correlation_id), TRACE.set(call.trace)
    user = USER.set(call.user)
    try:
        yield
    except EngineFault as fault:
        error = to_error(fault)
        if not isinstance(fault, Refused):  # the words of a refusal may be the caller's own
            call.log["reason"] = error.message
        raise error from fault
    finally:
        REQUEST_ID.reset(request_id)
        TRACE.reset(trace)
        USER.reset(user)


@dataclass(frozen=True, slots=True)
class EngineWords:
    """How one toolset speaks of the engine's faults: messages over `MESSAGES`, and codes of its own."""

    messages: Mapping[str, str]
    codes: Mapping[str, str] = field(default_factory=dict)

    def engine_call(self, call: Call, **subject: Any) -> AbstractContextManager[None]:
        """Call the engine for `call`; faults come out as `tool_error` has them."""
        return reported(call, partial(self.tool_error, **subject))

    def tool_error(self, fault: EngineFault, **subject: Any) -> ToolError:
        """The error that an agent sees; `subject` is the one id that the call is about, such as `job_id`."""
        error = tool_error(fault, {**MESSAGES, **self.messages}, **subject)
        error.code = self.codes.get(error.code, error.code)
        return error


def tool_error(fault: EngineFault, messages: Mapping[str, str] = MESSAGES, **subject: Any) -> ToolError:
    """What an agent reads of `fault`: a stable code, what happened, and what to do next.

    `subject` (`document_id`, `job_id`, `task_id`) is named in the message and stands in the error beside it.
    """
    wait = fault.retry_after
    words = {
        "detail": fault.detail,
        "url": fault.url if isinstance(fault, EngineUnreachable) else "",
        "wait": f"{max(1, round(wait))} s" if wait is not None else "a few seconds",
        "document": f"Document {subject['document_id']}" if "document_id" in subject else "The document",
        "job": f"Job {subject['job_id']}" if "job_id" in subject else "The job",
        "id": next(iter(subject.values()), ""),
    }
    details = dict(subject)
    if wait is not None:
        details["retry_after"] = wait
    code = fault.code
    if isinstance(fault, Refused):
        code = fault.reason
        details |= {name: fault.members[name] for name in _PUBLIC_MEMBERS if name in fault.members}
        if isinstance(parameter := details.get("parameter"), str):
            details["parameter"] = parameter.removeprefix(_FLATTENED)
    message = messages.get(code, messages["engine_refused"]).format_map(words)
    return ToolError(code, f"{message} {fault.aftermath}".rstrip(), **details)
