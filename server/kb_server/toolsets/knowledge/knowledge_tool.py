"""The base class of the tools of `knowledge` and their texts: `success` in every result, UUIDs as ids."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from kb_contracts.api import models as m
from kb_server.document_marks import DocumentMark
from kb_server.tool import A, EngineWords, R
from kb_server.toolsets import ServiceTool
from kb_server.uploads.upload import MEBIBYTE

DOCUMENT_NOT_FOUND = "Document with ID '{id}' not found"
ENGINE_WORDS = EngineWords(
    {
        "document_not_found": DOCUMENT_NOT_FOUND,
        "job_not_found": "Task with ID '{id}' not found",
        "job_finished": "Task with ID '{id}' has ended and cannot be cancelled",
        "engine_timeout": (
            "The engine accepted the request but did not respond. Check with knowledge-show whether it was "
            "done; then try again."
        ),
        "embedder_unavailable": "The engine cannot load its embedding model; knowledge-status says why.",
    },
    codes={"job_not_found": "task_not_found", "job_finished": "task_finished"},
)

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)


class Success(msgspec.Struct, kw_only=True):
    """The parent of results. A member that does not belong to the outcome is absent."""

    success: bool = True


class KnowledgeTool(ServiceTool[A, R]):
    """A tool whose errors have `success: false`."""

    document_mark: ClassVar[DocumentMark] = "meta"
    engine_words = ENGINE_WORDS
    error_members: ClassVar[Mapping[str, Any]] = {"success": False}


def is_uuid(text: str) -> bool:
    """True for a UUID in the form of the ids."""
    return _UUID.fullmatch(text) is not None


def name_of(document: m.Document | m.DocumentSummary) -> str:
    """Return the document's file name; for a note, its title."""
    return document.filename or document.title


def document_format(document: m.Document | m.DocumentSummary) -> str:
    """Return the document's file format, or `note`."""
    return document.format or document.doc_type


def megabytes(size: int) -> float:
    """Return bytes as MB of 1048576 bytes, with two decimals."""
    return round(size / MEBIBYTE, 2)
