"""What the seven tools have in common: `success` in every answer, UUIDs for ids."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import msgspec

from kb_contracts.api import models as m
from kb_server.settings import MEBIBYTE
from kb_server.toolsets import ServiceTool
from kb_server.toolsets.knowledge.errors import ENGINE_WORDS

A = TypeVar("A", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)

CONFIRM = "confirmation_required"

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)


class Success(msgspec.Struct, kw_only=True):
    """The parent of results. A member that does not belong to the outcome is absent."""

    success: bool = True


class KnowledgeTool(ServiceTool[A, R]):
    """A tool whose errors say `success: false`."""

    engine_words = ENGINE_WORDS
    error_members: ClassVar[Mapping[str, Any]] = {"success": False}


def is_uuid(text: str) -> bool:
    """Whether it is a UUID, written as ids are written."""
    return _UUID.fullmatch(text) is not None


def name_of(document: m.Document | m.DocumentSummary) -> str:
    """The document's file name; a note's title, for it has none."""
    return document.filename or document.title


def document_format(document: m.Document | m.DocumentSummary) -> str:
    """The document's file format; `note` where it is no file."""
    return document.format or document.doc_type


def megabytes(size: int) -> float:
    """Bytes as MB, which are 1048576 bytes; two decimals."""
    return round(size / MEBIBYTE, 2)
