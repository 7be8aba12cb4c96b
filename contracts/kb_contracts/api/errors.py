"""The errors of an engine, in one table: RFC 9457 problem documents with a stable `code`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec


class Fault(StrEnum):
    """The side that can repair the failure."""

    CALLER = "caller"
    ENGINE = "engine"


class Retry(StrEnum):
    """The chance of success of the same request when it is sent again."""

    NO = "no"
    LATER = "later"
    REREAD = "reread"


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """One line of the table. `title` is a short constant sentence about the kind."""

    code: str
    status: HTTPStatus
    title: str
    fault: Fault = Fault.CALLER
    retry: Retry = Retry.NO


_engine = partial(ErrorKind, fault=Fault.ENGINE)
_engine_later = partial(ErrorKind, fault=Fault.ENGINE, retry=Retry.LATER)
_KINDS = (
    # Errors that a caller can repair. The body is not JSON, not multipart, or not an object:
    ErrorKind("invalid_request", HTTPStatus.BAD_REQUEST, "The request cannot be read"),
    ErrorKind("invalid_parameter", HTTPStatus.UNPROCESSABLE_ENTITY, "A value is invalid"),
    ErrorKind("unknown_parameter", HTTPStatus.UNPROCESSABLE_ENTITY, "The parameter is unknown"),
    ErrorKind("missing_parameter", HTTPStatus.UNPROCESSABLE_ENTITY, "A required value is absent"),
    ErrorKind("contradiction", HTTPStatus.UNPROCESSABLE_ENTITY, "Two values exclude each other"),
    ErrorKind("unauthorized", HTTPStatus.UNAUTHORIZED, "The key is missing or wrong"),
    ErrorKind("forbidden", HTTPStatus.FORBIDDEN, "The caller may not do this"),
    ErrorKind("route_not_found", HTTPStatus.NOT_FOUND, "There is no such path"),
    ErrorKind("method_not_allowed", HTTPStatus.METHOD_NOT_ALLOWED, "The path does not support this method"),
    ErrorKind("document_not_found", HTTPStatus.NOT_FOUND, "There is no such document"),
    ErrorKind("job_not_found", HTTPStatus.NOT_FOUND, "There is no such job"),
    ErrorKind("tag_not_found", HTTPStatus.NOT_FOUND, "The document does not carry this tag"),
    # the version never existed, or is no longer kept
    ErrorKind("version_not_found", HTTPStatus.NOT_FOUND, "This version is not kept"),
    # the file was never kept, or the document is a note, which is its text
    ErrorKind("original_not_kept", HTTPStatus.NOT_FOUND, "The file of this document is not kept"),
    ErrorKind("page_not_found", HTTPStatus.NOT_FOUND, "There is no such page of this request"),
    ErrorKind("source_not_found", HTTPStatus.NOT_FOUND, "The document does not come from this source"),
    ErrorKind("collection_not_found", HTTPStatus.NOT_FOUND, "There is no such collection"),
    ErrorKind("not_a_note", HTTPStatus.CONFLICT, "Only notes can be updated in place"),
    ErrorKind("version_conflict", HTTPStatus.CONFLICT, "The document has changed", retry=Retry.REREAD),
    ErrorKind("job_finished", HTTPStatus.CONFLICT, "The job has ended"),
    # it has not failed, or its input is no longer kept
    ErrorKind("job_not_retryable", HTTPStatus.CONFLICT, "The job cannot be retried"),
    ErrorKind("collection_exists", HTTPStatus.CONFLICT, "The name and the id do not match"),
    ErrorKind(
        "idempotency_mismatch", HTTPStatus.CONFLICT, "The idempotency key was used for another request"
    ),
    # a request with this key is still running
    ErrorKind("in_progress", HTTPStatus.CONFLICT, "This request is still running", retry=Retry.LATER),
    ErrorKind("confirmation_required", HTTPStatus.UNPROCESSABLE_ENTITY, "Confirmation is required"),
    ErrorKind("payload_too_large", HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The body is too large"),
    # neither JSON nor multipart
    ErrorKind(
        "unsupported_media_type", HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "The content type is not supported"
    ),
    ErrorKind("unsupported_format", HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "The file format is not supported"),
    # the limit of one user in this minute
    ErrorKind("rate_limited", HTTPStatus.TOO_MANY_REQUESTS, "Too many requests", retry=Retry.LATER),
    # Causes of a job's failure. The file is damaged, or its content does not match its name:
    ErrorKind("file_corrupt", HTTPStatus.UNPROCESSABLE_ENTITY, "The file is damaged"),
    ErrorKind("file_encrypted", HTTPStatus.UNPROCESSABLE_ENTITY, "The file is protected by a password"),
    # nor UTF-16 with a BOM
    ErrorKind("undecodable_text", HTTPStatus.UNPROCESSABLE_ENTITY, "The text is not in a known encoding"),
    ErrorKind("extraction_failed", HTTPStatus.UNPROCESSABLE_ENTITY, "No text could be extracted"),
    ErrorKind("extraction_timeout", HTTPStatus.UNPROCESSABLE_ENTITY, "Extraction took too long"),
    ErrorKind("extraction_memory", HTTPStatus.UNPROCESSABLE_ENTITY, "Extraction needed too much memory"),
    # the engine cannot read pictures, or failed on this one
    _engine("ocr_failed", HTTPStatus.INTERNAL_SERVER_ERROR, "The image could not be read"),
    # For engines that give a job up after it has ended them; the engine here lets it rest and tries again.
    _engine("worker_crashed", HTTPStatus.INTERNAL_SERVER_ERROR, "The engine crashed on this job"),
    # Errors on the side of the engine.
    _engine_later("queue_full", HTTPStatus.TOO_MANY_REQUESTS, "Too many jobs are queued"),
    _engine_later("storage_full", HTTPStatus.INSUFFICIENT_STORAGE, "No storage space is left"),
    _engine_later(
        "embedder_unavailable", HTTPStatus.SERVICE_UNAVAILABLE, "The embedding model is unavailable"
    ),
    # starting or shutting down
    _engine_later("not_ready", HTTPStatus.SERVICE_UNAVAILABLE, "The engine is not ready"),
    # a fault of the engine; details are in its log
    _engine_later("internal", HTTPStatus.INTERNAL_SERVER_ERROR, "The engine failed"),
)
ERRORS = {kind.code: kind for kind in _KINDS}
"""The error kinds by code; no engine uses another code."""

PROBLEM_JSON = "application/problem+json"


class Problem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An RFC 9457 problem document. `detail` has advice; `retry_after` is in seconds."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    parameter: str | None = None
    retry_after: float | None = None
    current_version: int | None = None


class EngineError(Exception):
    """A failure that becomes the response, as a problem document.

    `code` is a key of `ERRORS`; `detail` describes the failure and the next step, for people and agents;
    `members` are further members of the problem document (`parameter`, `retry_after`, `current_version`).
    """

    def __init__(self, code: str, detail: str, **members: Any) -> None:
        super().__init__(detail)
        self.kind = ERRORS[code]
        self.detail = detail
        self.members = members

    @property
    def code(self) -> str:
        """The stable code."""
        return self.kind.code

    def problem(self) -> Problem:
        """Return the problem document of the response."""
        return Problem(
            type=f"urn:kb:error:{self.kind.code}",
            title=self.kind.title,
            status=int(self.kind.status),
            code=self.kind.code,
            detail=self.detail,
            **self.members,
        )
