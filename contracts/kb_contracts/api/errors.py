"""The errors an engine answers with: RFC 9457 problem documents with a stable `code`.

code                      status  at fault  retry   what happened
------------------------  ------  --------  ------  -----------------------------------------------
caller
  invalid_request           400   caller    no      body is not JSON, not multipart, or not an object
  invalid_parameter         422   caller    no      a value is out of range or of the wrong type
  unknown_parameter         422   caller    no      a field or query parameter that does not exist
  missing_parameter         422   caller    no      a required value is absent
  contradiction             422   caller    no      two values exclude each other
  unauthorized              401   caller    no      no bearer key, or the wrong one
  forbidden                 403   caller    no      the caller's role may not do this
  route_not_found           404   caller    no      no such path
  method_not_allowed        405   caller    no      the path exists, the method does not
  document_not_found        404   caller    no      no document with that id
  job_not_found             404   caller    no      no job with that id
  tag_not_found             404   caller    no      the document does not carry that tag
  collection_not_found      404   caller    no      no collection with that id or name
  not_a_note                409   caller    no      only notes can be patched
  version_conflict          409   caller    reread  the document has another version than expected
  job_finished              409   caller    no      the job has ended and cannot be cancelled
  job_not_retryable         409   caller    no      the job has not failed, or what it was sent is gone
  collection_exists         409   caller    no      the name or the id belongs to another collection
  idempotency_mismatch      409   caller    no      the same key came with another request
  in_progress               409   caller    later   a request with this key is still running
  confirmation_required     422   caller    no      a destructive request without `confirm`
  payload_too_large         413   caller    no      the body is over the limit
  unsupported_media_type    415   caller    no      content type is neither JSON nor multipart
  unsupported_format        415   caller    no      no extractor for this kind of file
  rate_limited              429   caller    later   too many requests of one user in this minute
job (in a failed job's `error`, never as a status of its own)
  file_corrupt              422   caller    no      the file is damaged or not what it says
  file_encrypted            422   caller    no      the file opens with a password only
  undecodable_text          422   caller    no      a text file that is not UTF-8 (or UTF-16 with a BOM)
  extraction_failed         422   caller    no      no text could be taken out
  extraction_timeout        422   caller    no      extraction took longer than allowed
  extraction_memory         422   caller    no      extraction needed more memory than allowed
  ocr_failed                500   engine    no      the engine cannot read pictures, or broke on this one
  worker_crashed            500   engine    no      an earlier engine died on it too often; ours retries
engine
  queue_full                429   engine    later   too many jobs wait
  storage_full              507   engine    later   no space is left
  embedder_unavailable      503   engine    later   the embedding model cannot be used
  not_ready                 503   engine    later   starting or shutting down
  internal                  500   engine    later   a fault of the engine; details are in its log
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec


class Fault(StrEnum):
    """Who can mend it."""

    CALLER = "caller"
    ENGINE = "engine"


class Retry(StrEnum):
    """Whether the same request may succeed when it is sent again."""

    NO = "no"
    LATER = "later"
    REREAD = "reread"


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """One line of the table above. `title` is a short constant sentence about the kind."""

    code: str
    status: HTTPStatus
    title: str
    fault: Fault = Fault.CALLER
    retry: Retry = Retry.NO


_engine = partial(ErrorKind, fault=Fault.ENGINE)
_engine_later = partial(ErrorKind, fault=Fault.ENGINE, retry=Retry.LATER)
_KINDS = (
    ErrorKind("invalid_request", HTTPStatus.BAD_REQUEST, "The request cannot be read"),
    ErrorKind("invalid_parameter", HTTPStatus.UNPROCESSABLE_ENTITY, "A value does not fit"),
    ErrorKind("unknown_parameter", HTTPStatus.UNPROCESSABLE_ENTITY, "There is no such parameter"),
    ErrorKind("missing_parameter", HTTPStatus.UNPROCESSABLE_ENTITY, "A required value is absent"),
    ErrorKind("contradiction", HTTPStatus.UNPROCESSABLE_ENTITY, "Two values exclude each other"),
    ErrorKind("unauthorized", HTTPStatus.UNAUTHORIZED, "The key is missing or wrong"),
    ErrorKind("forbidden", HTTPStatus.FORBIDDEN, "The role may not do this"),
    ErrorKind("route_not_found", HTTPStatus.NOT_FOUND, "There is no such path"),
    ErrorKind("method_not_allowed", HTTPStatus.METHOD_NOT_ALLOWED, "The path does not take this method"),
    ErrorKind("document_not_found", HTTPStatus.NOT_FOUND, "There is no such document"),
    ErrorKind("job_not_found", HTTPStatus.NOT_FOUND, "There is no such job"),
    ErrorKind("tag_not_found", HTTPStatus.NOT_FOUND, "The document does not carry this tag"),
    ErrorKind("collection_not_found", HTTPStatus.NOT_FOUND, "There is no such collection"),
    ErrorKind("not_a_note", HTTPStatus.CONFLICT, "Only notes can be updated in place"),
    ErrorKind("version_conflict", HTTPStatus.CONFLICT, "The document has changed", retry=Retry.REREAD),
    ErrorKind("job_finished", HTTPStatus.CONFLICT, "The job has ended"),
    ErrorKind("job_not_retryable", HTTPStatus.CONFLICT, "The job cannot be tried again"),
    ErrorKind("collection_exists", HTTPStatus.CONFLICT, "Name and id do not belong together"),
    ErrorKind("idempotency_mismatch", HTTPStatus.CONFLICT, "The key belongs to another request"),
    ErrorKind("in_progress", HTTPStatus.CONFLICT, "This request is still running", retry=Retry.LATER),
    ErrorKind("confirmation_required", HTTPStatus.UNPROCESSABLE_ENTITY, "Confirmation is required"),
    ErrorKind("payload_too_large", HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The body is too large"),
    ErrorKind("unsupported_media_type", HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "The content type is not taken"),
    ErrorKind("unsupported_format", HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "This kind of file is not taken"),
    ErrorKind("rate_limited", HTTPStatus.TOO_MANY_REQUESTS, "Too many requests", retry=Retry.LATER),
    ErrorKind("file_corrupt", HTTPStatus.UNPROCESSABLE_ENTITY, "The file is damaged"),
    ErrorKind("file_encrypted", HTTPStatus.UNPROCESSABLE_ENTITY, "The file is locked with a password"),
    ErrorKind("undecodable_text", HTTPStatus.UNPROCESSABLE_ENTITY, "The text is not UTF-8"),
    ErrorKind("extraction_failed", HTTPStatus.UNPROCESSABLE_ENTITY, "No text could be extracted"),
    ErrorKind("extraction_timeout", HTTPStatus.UNPROCESSABLE_ENTITY, "Extraction took too long"),
    ErrorKind("extraction_memory", HTTPStatus.UNPROCESSABLE_ENTITY, "Extraction needed too much memory"),
    _engine("ocr_failed", HTTPStatus.INTERNAL_SERVER_ERROR, "The picture could not be read"),
    _engine("worker_crashed", HTTPStatus.INTERNAL_SERVER_ERROR, "The engine died on this job"),
    _engine_later("queue_full", HTTPStatus.TOO_MANY_REQUESTS, "Too many jobs wait"),
    _engine_later("storage_full", HTTPStatus.INSUFFICIENT_STORAGE, "No space is left"),
    _engine_later("embedder_unavailable", HTTPStatus.SERVICE_UNAVAILABLE, "No embedding model"),
    _engine_later("not_ready", HTTPStatus.SERVICE_UNAVAILABLE, "The engine is not ready"),
    _engine_later("internal", HTTPStatus.INTERNAL_SERVER_ERROR, "The engine failed"),
)
ERRORS = {kind.code: kind for kind in _KINDS}
"""Every code an engine may answer with."""

PROBLEM_JSON = "application/problem+json"


class Problem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An RFC 9457 problem document. `detail` says what to do; `retry_after` is in seconds."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    parameter: str | None = None
    retry_after: float | None = None
    current_version: int | None = None


class EngineError(Exception):
    """A failure that the engine answers with, as a problem document.

    `code` is a key of `ERRORS`; `detail` says what happened and what to do next, for people and agents;
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
        """The document that goes over the wire."""
        return Problem(
            type=f"urn:kb:error:{self.kind.code}",
            title=self.kind.title,
            status=int(self.kind.status),
            code=self.kind.code,
            detail=self.detail,
            **self.members,
        )
