"""Conversion of an engine's fault to the error that an agent sees, with messages that name no tool.

Hosting reports the faults that leave a tool with the messages of its toolset (`Tool.engine_words`), which can
name the tool to call next. The engine client knows neither tools nor agents.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from kb_contracts.api.ragler import WINDOW_SECONDS
from kb_server.engine_client.errors import EngineFault, EngineUnreachable, RateLimited, Refused
from kb_server.tool import EngineWords, ToolError

MESSAGES: Mapping[str, str] = {
    "engine_unreachable": (
        "The engine is unreachable at {url}: {detail}. Check that it runs and that KB_ENGINE_URL is right; "
        "then try again."
    ),
    "engine_timeout": "The engine accepted the request but did not respond. {detail} Try again.",
    "engine_unauthorized": (
        "The engine refused the server's KB_API_KEY. The operator of the server must set it to the engine's "
        "key."
    ),
    "engine_too_old": "{detail} The operator of the engine must upgrade it.",
    "engine_busy": "The engine is busy: {detail} Try again in {wait}.",
    "engine_failed": "The engine failed: {detail} Try again; its log says more.",
    "engine_bad_answer": (
        "The service at KB_ENGINE_URL does not behave like an engine of this version. {detail} The operator "
        "of the server must check that setting and any proxy in between."
    ),
    "engine_refused": "The engine refused the request: {detail}",
    "document_not_found": "{document} was not found.",
    "job_not_found": "{job} was not found.",
    "job_finished": "{job} has ended already and cannot be cancelled.",
    "job_not_retryable": "{job}: {detail}",
    "version_not_found": "{document}: {detail}",
    "tag_not_found": "{document} does not carry this tag.",
    "forbidden": "{detail}",
    "version_conflict": "{document} has changed in the meantime. Read it again, then repeat.",
    "storage_full": (
        "The engine has no space left: {detail} Remove documents, or ask the operator of the engine for "
        "space."
    ),
    "embedder_unavailable": "The engine cannot load its embedding model: {detail}",
    "in_progress": "The engine is still processing this request. Try again in a moment.",
}
"""By the fault's code, or by a refusal's reason; `engine_refused` stands for unknown reasons."""

_PUBLIC_MEMBERS = ("parameter", "current_version")


_SUBJECTS = ("document_id", "job_id", "task_id", "collection_id")


def subject_of(arguments: msgspec.Struct | None) -> dict[str, Any]:
    """Return the id in the arguments of a call, by its name; empty if there is no id."""
    ids = {name: getattr(arguments, name, None) for name in _SUBJECTS}
    return {name: value if isinstance(value, int) else str(value) for name, value in ids.items() if value}


def tool_error(fault: EngineFault, words: EngineWords = EngineWords(), **subject: Any) -> ToolError:  # noqa: B008
    """Return the error for an agent: a stable code, a description of `fault`, and the next step.

    `subject` (`document_id`, `job_id`, `task_id`, `collection_id`) is named in the message and is a member of
    the error.
    """
    wait = fault.retry_after
    if wait is None and isinstance(fault, RateLimited):
        wait = WINDOW_SECONDS  # not given by the backend; by then the next window has begun
    members = {
        "detail": fault.detail,
        "url": fault.url if isinstance(fault, EngineUnreachable) else "",
        "wait": f"{max(1, math.ceil(wait))} s" if wait is not None else "a few seconds",
        "document": f"Document {subject['document_id']}" if "document_id" in subject else "The document",
        "job": f"Job {subject['job_id']}" if "job_id" in subject else "The job",
        "collection": subject.get("collection_id"),
        "id": next(iter(subject.values()), ""),
    }
    details = dict(subject)
    if wait is not None:
        details["retry_after"] = max(1, math.ceil(wait))
    code = fault.code
    if isinstance(fault, Refused):
        code = fault.reason
        details |= {name: fault.members[name] for name in _PUBLIC_MEMBERS if name in fault.members}
        parameter = details.get("parameter")
        if isinstance(parameter, str) and parameter.startswith(words.flattened):
            details["parameter"] = parameter.removeprefix(words.flattened)
            members["detail"] = fault.detail.replace(parameter, details["parameter"])
    messages = {**MESSAGES, **words.messages}
    message = messages.get(code, messages["engine_refused"]).format_map(members)
    return ToolError(words.codes.get(code, code), f"{message} {fault.aftermath}".rstrip(), **details)
