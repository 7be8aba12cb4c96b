"""What the seven tools have in common: `success` in every answer, UUIDs for ids, and their own words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import msgspec

from kb_contracts.api import models as m
from kb_server.engine_client import engine_call
from kb_server.settings import MEBIBYTE
from kb_server.tool import Call, ToolError
from kb_server.toolsets.service_tool import ServiceTool

A = TypeVar("A", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)

CONFIRM = "confirmation_required"

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)

_WORDS: Mapping[str, tuple[str, str]] = {
    "document_not_found": ("document_not_found", "Document with ID '{id}' not found"),
    "job_not_found": ("task_not_found", "Task with ID '{id}' not found"),
    "job_finished": ("task_finished", "Task with ID '{id}' has ended and cannot be cancelled"),
    "engine_timeout": (
        "engine_timeout",
        "The engine took the request and then kept silent. Look with knowledge-show whether it was done; "
        "then try again.",
    ),
    "embedder_unavailable": (
        "embedder_unavailable",
        "The engine cannot load its embedding model; knowledge-status says why.",
    ),
}
"""Code and message for the failures that the engine client tells in terms of the toolset `kb`."""


class Success(msgspec.Struct, kw_only=True):
    """The parent of results. A member that does not belong to the outcome is absent."""

    success: bool = True


class KnowledgeTool(ServiceTool[A, R]):
    """A tool whose errors say `success: false`."""

    error_members: ClassVar[Mapping[str, Any]] = {"success": False}


@contextmanager
def asking(call: Call, **subject: str) -> Iterator[None]:
    """As `engine_call`, with the errors in this toolset's terms.

    `subject` is the one id that the operation is about, `document_id` or `task_id`.
    """
    try:
        with engine_call(call):
            yield
    except ToolError as error:
        raise _in_our_terms(error, subject) from error


def is_uuid(text: str) -> bool:
    """Whether it is a UUID, written as ids are written."""
    return _UUID.fullmatch(text) is not None


def document_not_found(document_id: str) -> ToolError:
    """There is no document of this id."""
    code, message = _WORDS["document_not_found"]
    return ToolError(code, message.format(id=document_id), document_id=document_id)


def shown_name(document: m.Document | m.DocumentSummary) -> str:
    """The document's file name; a note's title, for it has none."""
    return document.filename or document.title


def shown_format(document: m.Document | m.DocumentSummary) -> str:
    """The document's file format; `note` where it is no file."""
    return document.format or document.doc_type


def megabytes(size: int) -> float:
    """Bytes as MB, which are 1048576 bytes; two decimals."""
    return round(size / MEBIBYTE, 2)


def _in_our_terms(error: ToolError, subject: Mapping[str, str]) -> ToolError:
    details = {**subject, **error.details}
    if error.code not in _WORDS:
        return ToolError(error.code, error.message, **details)
    code, message = _WORDS[error.code]
    return ToolError(code, message.format(id="".join(subject.values())), **details)
