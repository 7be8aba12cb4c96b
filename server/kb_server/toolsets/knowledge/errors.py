"""The engine's faults in the words of the toolset `knowledge`, whose jobs are tasks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from kb_server import engine_faults
from kb_server.engine_client.errors import EngineFault
from kb_server.tool import Call, ToolError

_MESSAGES: Mapping[str, str] = {
    **engine_faults.MESSAGES,
    "document_not_found": "Document with ID '{id}' not found",
    "job_not_found": "Task with ID '{id}' not found",
    "job_finished": "Task with ID '{id}' has ended and cannot be cancelled",
    "engine_timeout": (
        "The engine took the request and then kept silent. Look with knowledge-show whether it was done; "
        "then try again."
    ),
    "embedder_unavailable": "The engine cannot load its embedding model; knowledge-status says why.",
}
_CODES: Mapping[str, str] = {"job_not_found": "task_not_found", "job_finished": "task_finished"}


def engine_call(call: Call, **subject: str) -> AbstractContextManager[None]:
    """Call the engine for `call`; faults come out as errors of this toolset.

    `subject` is the one id that the call is about, `document_id` or `task_id`.
    """

    def error_of(fault: EngineFault) -> ToolError:
        error = engine_faults.tool_error(fault, _MESSAGES, **subject)
        return ToolError(_CODES.get(error.code, error.code), error.message, **error.details)

    return engine_faults.reported(call, error_of)


def document_not_found(document_id: str) -> ToolError:
    """There is no document of this id."""
    message = _MESSAGES["document_not_found"].format(id=document_id)
    return ToolError("document_not_found", message, document_id=document_id)
