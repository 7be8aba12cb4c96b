"""From an engine fault to the error that an agent sees: the one place where their words stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kb_server.engine_client.errors import EngineFault, EngineUnreachable, Refused
from kb_server.engine_client.port import REQUEST_ID, TRACE, USER
from kb_server.tool import Call, ToolError

_FAULTS: Mapping[str, str] = {
    "engine_unreachable": (
        "The engine is unreachable at {url}: {detail}. Check that it runs and that KB_ENGINE_URL is right; "
        "then try again."
    ),
    "engine_timeout": (
        "The engine took the request and then kept silent. {detail} Try again; for a note or a file, look "
        "at kb_jobs first."
    ),
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
}
_REFUSALS: Mapping[str, str] = {
    "document_not_found": (
        "{document} was not found. Look it up with kb_search, or with kb_get by its source_path."
    ),
    "not_a_note": (
        "{document} is not a note; only notes can be updated in place. Upload the changed file instead, "
        "or add a note beside it."
    ),
    "version_conflict": "{document} has changed in the meantime. Read it again with kb_get, then repeat.",
    "job_not_found": "{job} was not found. kb_jobs without a job_id lists the recent ones.",
    "job_finished": "{job} has ended already and cannot be cancelled.",
    "job_not_retryable": "{job}: {detail}",
    "tag_not_found": "{document} does not carry this tag.",
    "storage_full": "The engine has no space left: {detail} Remove documents, or ask whoever runs it.",
    "embedder_unavailable": (
        'The engine cannot load its embedding model: {detail} A search with mode "fts" needs none.'
    ),
    "in_progress": "The engine is still at work on this very request. Try again in a moment.",
}
_ANY_REFUSAL = "The engine refused the request: {detail}"
_FLATTENED = "filters."
"""Stands before parameters that the engine takes in an object and the tools take flat."""

_SHOWN_MEMBERS = ("parameter", "current_version")


@contextmanager
def engine_call(call: Call, **subject: Any) -> Iterator[None]:
    """Run engine operations for `call`: its id and trace go along, and faults come out as `ToolError`.

    `subject` (`document_id`, `job_id`) is named in the messages and stands in the error beside them.
    """
    with on_behalf_of(call):
        try:
            yield
        except EngineFault as fault:
            error = tool_error(fault, **subject)
            if not isinstance(fault, Refused):  # the words of a refusal may be the caller's own
                call.log["reason"] = error.message
            raise error from fault


@contextmanager
def on_behalf_of(call: Call) -> Iterator[None]:
    """What is sent meanwhile carries the call's correlation id, its trace and whom it is for."""
    token, trace, user = REQUEST_ID.set(call.correlation_id), TRACE.set(call.trace), USER.set(call.user)
    try:
        yield
    finally:
        REQUEST_ID.reset(token)
        TRACE.reset(trace)
        USER.reset(user)


def tool_error(fault: EngineFault, **subject: Any) -> ToolError:
    """What an agent is told about `fault`: a stable code, what happened, and what to do next."""
    details = dict(subject)
    if fault.retry_after is not None:
        details["retry_after"] = fault.retry_after
    if isinstance(fault, Refused):
        details |= {name: fault.members[name] for name in _SHOWN_MEMBERS if name in fault.members}
        if isinstance(parameter := details.get("parameter"), str):
            details["parameter"] = parameter.removeprefix(_FLATTENED)
        template = _REFUSALS.get(fault.reason, _ANY_REFUSAL)
        return ToolError(fault.reason, template.format_map(_words(fault, subject)), **details)
    return ToolError(fault.code, _FAULTS[fault.code].format_map(_words(fault, subject)), **details)


def _words(fault: EngineFault, subject: Mapping[str, Any]) -> dict[str, str]:
    wait = fault.retry_after
    return {
        "detail": fault.detail,
        "url": fault.url if isinstance(fault, EngineUnreachable) else "",
        "wait": f"{max(1, round(wait))} s" if wait is not None else "a few seconds",
        "document": f"Document {subject['document_id']}" if "document_id" in subject else "The document",
        "job": f"Job {subject['job_id']}" if "job_id" in subject else "The job",
    }
