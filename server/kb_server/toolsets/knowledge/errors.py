"""The engine's faults in the words of the toolset `knowledge`, whose jobs are tasks."""

from __future__ import annotations

from kb_server.tool import EngineWords, ToolError

_DOCUMENT_NOT_FOUND = "Document with ID '{id}' not found"
ENGINE_WORDS = EngineWords(
    {
        "document_not_found": _DOCUMENT_NOT_FOUND,
        "job_not_found": "Task with ID '{id}' not found",
        "job_finished": "Task with ID '{id}' has ended and cannot be cancelled",
        "engine_timeout": (
            "The engine took the request and then kept silent. Look with knowledge-show whether it was done; "
            "then try again."
        ),
        "embedder_unavailable": "The engine cannot load its embedding model; knowledge-status says why.",
    },
    codes={"job_not_found": "task_not_found", "job_finished": "task_finished"},
)


def document_not_found(document_id: str) -> ToolError:
    """There is no document of this id."""
    message = _DOCUMENT_NOT_FOUND.format(id=document_id)
    return ToolError("document_not_found", message, document_id=document_id)
