"""Every operation of an engine, declared once, as a typed constant.

`Operation[B, R]` takes a JSON body of the type B (None: it takes no body) and returns an R, so that a call by
its constant has both types checked: `client.call(SEARCH, body=...)` is a `SearchResponse`. The table of all
operations determines the two OpenAPI documents (the engine API, and RAGler's operations at the root), the
routes that an engine mounts and the paths that clients call. An operation without a handler stops an engine
at its start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from string import Formatter
from typing import Annotated, Any, Generic, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Meta

from kb_contracts.access.reach import Right
from kb_contracts.api import models as m
from kb_contracts.api import ragler as r
from kb_contracts.api.content import FileContent

API_VERSION = "v3.0.0"
"""Lowest version in `/status` of an engine with this API, and the version that the server requires."""

BASE = "/api/v1"
IDEMPOTENCY_KEY = "Idempotency-Key"
IF_MATCH = "If-Match"
MAX_WAIT_SECONDS = 30
MAX_TEXT_SLICE = 1_000_000
MAX_SIMILAR = 10
UPDATE_WAIT_SECONDS = 20.0
"""Default time that `patchNote` waits for its job, in seconds."""


B = TypeVar("B")
R = TypeVar("R", bound=msgspec.Struct)


class Method(StrEnum):
    GET = "GET"
    POST = "POST"
    PUT = "PUT"
    PATCH = "PATCH"
    DELETE = "DELETE"


class ApiSurface(StrEnum):
    """The OpenAPI document of an operation. An engine serves `ENGINE`, and `RAGLER` whole or not at all."""

    ENGINE = "engine"
    RAGLER = "ragler"


Limit = Annotated[int, Meta(ge=1, le=1_000, description="maximum number of items")]
Offset = Annotated[int, Meta(ge=0, le=m.MAX_INTEGER, description="number of items to skip")]


class NoQuery(m.Request):
    """The query of an operation without query parameters."""


class PageQuery(m.Request):
    limit: Limit = 100
    offset: Offset = 0


class JobQuery(m.Request):
    wait: Annotated[
        float, Meta(ge=0, le=MAX_WAIT_SECONDS, description="seconds to wait for the end of the job")
    ] = 0.0


class NoteQuery(m.Request):
    wait: Annotated[
        float,
        Meta(
            ge=0,
            le=MAX_WAIT_SECONDS,
            description="seconds to wait for the update; after that, 202 with its job",
        ),
    ] = UPDATE_WAIT_SECONDS


class JobsQuery(PageQuery):
    status: m.JobStatus | None = None


class DocumentsQuery(PageQuery):
    source_path: m.SourcePath | None = None
    source_path_prefix: m.SourcePathPrefix | None = None
    tag: m.Tags | None = None
    doc_type: m.DocType | None = None
    sort_by: Annotated[
        m.SortBy,
        Meta(description="a document without a filename is sorted by its title, among the filenames"),
    ] = "created_at"
    sort_order: m.SortOrder = "desc"


class DocumentQuery(m.Request):
    chunks: Annotated[bool, Meta(description="include the chunks")] = True
    chunk_offset: Annotated[Offset, Meta(description="number of chunks to skip")] = 0
    chunk_limit: Annotated[Limit, Meta(description="maximum number of chunks")] = 200
    text: Annotated[bool, Meta(description="include the text of a note, as it was sent")] = False
    similar: Annotated[
        int,
        Meta(ge=0, le=MAX_SIMILAR, description="maximum number of similar notes, if the document is a note"),
    ] = 0


WITHOUT_CHUNKS = DocumentQuery(chunks=False)
"""Query for a document without its chunks, as most callers need it."""


class PictureQuery(m.Request):
    page: Annotated[int, Meta(ge=1, le=m.MAX_INTEGER)] | None = None
    chunk: Annotated[int, Meta(ge=0, le=m.MAX_INTEGER, description="index of a chunk to mark")] | None = None


class SourceQuery(m.Request):
    source_path: m.SourcePath


class DeleteQuery(m.Request):
    purge: Annotated[bool, Meta(description="keep neither the document nor its earlier versions")] = False


class VersionQuery(m.Request):
    text_offset: Annotated[Offset, Meta(description="number of characters of the text to skip")] = 0
    text_limit: Annotated[
        int, Meta(ge=0, le=MAX_TEXT_SLICE, description="maximum number of characters of the text")
    ] = 100_000


class ClearQuery(m.Request):
    confirm: Annotated[bool, Meta(description="must be true")] = False
    collections: Annotated[
        bool, Meta(description="also remove the descriptions of collections and their assigned ids")
    ] = False


class TagQuery(m.Request):
    add: (
        Annotated[m.Tag, Meta(description="a tag to add after the removal, in the same transaction")] | None
    ) = None


class TagsQuery(PageQuery):
    prefix: Annotated[str, Meta(max_length=200)] = ""


class StatusQuery(m.Request):
    history: Annotated[bool, Meta(description="include counts over time, which take longer")] = False


DOCUMENT_KEY = Annotated[
    str,
    Meta(
        pattern=rf"^([1-9][0-9]{{0,18}}|{m.UUID})$(?!\n)",
        description="the document's number or its uid",
        examples=["42"],
    ),
]
NOTE_ID = m.DocumentId
JOB_ID = Annotated[
    str,
    Meta(
        pattern=rf"^{m.UUID}$(?!\n)",
        description="the job's UUID",
        examples=["3f0c5d7e-9a53-4f1c-8e2b-0b8f3f2f9b11"],
    ),
]
_PATH_PARAMETERS: Mapping[str, Any] = {
    "job_id": JOB_ID,
    "document_id": DOCUMENT_KEY,
    "version": m.Version,
    "tag": m.Tag,
    "collection_id": r.CollectionId,
}


@dataclass(frozen=True, slots=True)
class Link:
    """An operation that can follow: its path parameters, each as a pointer (RFC 6901) into this response."""

    operation: str
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Operation(Generic[B, R]):
    """One operation. `path` is the whole path with `{parameters}`; bodies and responses are Structs.

    `path_parameters` are their types, by default the types in `_PATH_PARAMETERS` for their names. `errors`
    are the codes beside those that follow from the other members (`possible_errors`). `accepted` is the model
    of a 202 response, for work that continues after the response. A retry under the same idempotency key then
    joins that work, and is never `in_progress`.
    """

    id: str
    method: Method
    path: str
    summary: str
    response_model: type[R]
    status: HTTPStatus = HTTPStatus.OK
    accepted: type[R] | None = None
    path_parameters: Mapping[str, Any] = field(default_factory=dict)
    query: type[m.Request] = NoQuery
    body: type[B] | None = None
    multipart: type[m.Request] | None = None
    if_match: bool = False
    errors: tuple[str, ...] = ()
    example: Mapping[str, Any] | None = None
    links: tuple[Link, ...] = ()
    public: bool = False
    """True: answered without a key."""
    reads: bool = False
    """True: a POST that changes nothing."""
    on_behalf: bool = False
    """True: `X-User-ID` names the user. Jobs take turns by user, and each user is one voice of feedback."""
    surface: ApiSurface = ApiSurface.ENGINE
    needs: Right | None = None
    """The required right, if it does not follow from the method."""
    right: Right = field(init=False)
    """The required right: `needs`, or by the method `read`, `delete` (DELETE) or `write`."""
    models: Mapping[int, type[R]] = field(init=False)
    """Response models by status. This and the following fields are computed once: each request reads them."""
    mutates: bool = field(init=False)
    """True if it honours `Idempotency-Key`."""
    excludes_retries: bool = field(init=False)
    """True if a retry is refused as `in_progress` while the first request runs."""
    names_user: bool = field(init=False)
    """True if it reads `X-User-ID`."""
    answers_file: bool = field(init=False)
    """True if its response is a file rather than JSON."""

    def __post_init__(self) -> None:
        set_once = partial(object.__setattr__, self)
        accepted = {} if self.accepted is None else {HTTPStatus.ACCEPTED: self.accepted}
        set_once("models", {self.status: self.response_model, **accepted})
        set_once("mutates", not (self.reads or self.method is Method.GET))
        set_once("excludes_retries", self.mutates and self.accepted is None)
        set_once("names_user", self.on_behalf or self.surface is ApiSurface.RAGLER)
        set_once("answers_file", self.response_model is FileContent)
        changing: Right = "delete" if self.method is Method.DELETE else "write"
        set_once("right", self.needs or (changing if self.mutates else "read"))
        if not self.path_parameters:
            names = [name for _, name, _, _ in Formatter().parse(self.path) if name]
            set_once("path_parameters", {name: _PATH_PARAMETERS[name] for name in names})

    def fill_path(self, values: Mapping[str, object]) -> str:
        """Return the path with `values` for its parameters, percent-encoded.
        Raises PathStepError: a value is empty, `.` or `..`: the path would be that of another resource, and a
        deletion would remove more than intended.
        """
        for name, value in values.items():
            if value in ("", ".", ".."):
                raise PathStepError(name, str(value))
        return self.path.format_map({name: quote(str(value), safe="") for name, value in values.items()})


class PathStepError(ValueError):
    """A path parameter that is empty, `.` or `..`; `parameter` is its name."""

    def __init__(self, parameter: str, value: str) -> None:
        super().__init__(f"{value!r} is no {parameter}.")
        self.parameter = parameter


def to_params(members: m.Request) -> dict[str, str]:
    """Return the members that differ from their defaults, as fields of a query or form; all but text as
    JSON.
    """
    given: dict[str, Any] = msgspec.to_builtins(members)
    return {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in given.items()
    }


AnyOperation: TypeAlias = Operation[Any, Any]
"""An operation of unspecified types."""


def _get(id_: str, path: str, summary: str, response: type[R], **further: Any) -> Operation[None, R]:
    return Operation(id_, Method.GET, path, summary, response, **further)


def _delete(id_: str, path: str, summary: str, response: type[R], **further: Any) -> Operation[None, R]:
    return Operation(id_, Method.DELETE, path, summary, response, **further)


def _post(
    id_: str, path: str, summary: str, body: type[B], response: type[R], **further: Any
) -> Operation[B, R]:
    return Operation(id_, Method.POST, path, summary, response, body=body, **further)


_JOBS = f"{BASE}/jobs"
_JOB = f"{_JOBS}/{{job_id}}"
_DOCUMENTS = f"{BASE}/documents"
_DOCUMENT = f"{_DOCUMENTS}/{{document_id}}"
_VERSIONS = f"{_DOCUMENT}/versions"
_VERSION = f"{_VERSIONS}/{{version}}"
_COLLECTIONS = "/collections"
_COLLECTION = f"{_COLLECTIONS}/{{collection_id}}"

_JOB_LINKS = (Link("getJob", {"job_id": "/id"}), Link("cancelJob", {"job_id": "/id"}))
_READ = Link("getDocument", {"document_id": "/id"})
_READ_VERSION = Link("getVersion", {"document_id": "/versions/0/uid", "version": "/versions/0/version"})
_DOCUMENT_LINKS = (
    Link("addTags", {"document_id": "/id"}),
    Link("removeTag", {"document_id": "/id", "tag": "/tags/0"}),
    Link("patchNote", {"document_id": "/id"}),
    Link("deleteDocument", {"document_id": "/id"}),
)

SEARCH = _post(
    "search",
    f"{BASE}/search",
    "Find passages by words, by meaning, or both",
    m.SearchRequest,
    m.SearchResponse,
    reads=True,
    errors=("contradiction", "embedder_unavailable", "page_not_found"),
    links=(Link("getDocument", {"document_id": "/results/0/document/id"}),),
    example={"query": "pension revaluation", "top": 5},
)

CHECK_CITATION = _post(
    "checkCitation",
    f"{BASE}/citations/check",
    "Check a citation: the quote is still there, has moved, has changed or is gone",
    m.Citation,
    m.CitationCheck,
    reads=True,
    links=(Link("getDocument", {"document_id": "/document_id"}),),
    example={
        "document": "3f0c5d7e-9a53-4f1c-8e2b-0b8f3f2f9b11",
        "version": 1,
        "start": 0,
        "end": 17,
        "begins": "Pensions are",
        "hash": "5f2c" * 8,
    },
)

CREATE_JOB = _post(
    "createJob",
    _JOBS,
    "Submit a note (JSON) or a file (multipart)",
    m.NoteRequest,
    m.Job,
    multipart=m.FileFields,
    status=HTTPStatus.ACCEPTED,
    errors=("undecodable_text", "unsupported_format", "queue_full"),
    example={"text": "User prefers concise responses", "tags": ["collection:memory"]},
    links=_JOB_LINKS,
    on_behalf=True,
)

LIST_JOBS = _get(
    "listJobs",
    _JOBS,
    "Jobs, newest first",
    m.JobList,
    query=JobsQuery,
    links=(Link("getJob", {"job_id": "/jobs/0/id"}),),
)

GET_JOB = _get(
    "getJob",
    _JOB,
    "One job; `wait` delays the response until it has ended",
    m.Job,
    query=JobQuery,
    links=(Link("getDocument", {"document_id": "/document_id"}),),
)

CANCEL_JOB = _delete(
    "cancelJob", _JOB, "Cancel a job that has not ended", m.Job, needs="write", errors=("job_finished",)
)

RETRY_JOB: Operation[None, m.Job] = Operation(
    "retryJob",
    Method.POST,
    f"{_JOB}/retry",
    "Queue a failed job again, with its original input",
    m.Job,
    status=HTTPStatus.ACCEPTED,
    errors=("job_not_retryable", "queue_full"),
    links=_JOB_LINKS,
)

LIST_DOCUMENTS = _get(
    "listDocuments",
    _DOCUMENTS,
    "Documents, filtered and sorted",
    m.DocumentList,
    query=DocumentsQuery,
    links=(Link("getDocument", {"document_id": "/documents/0/id"}),),
)

GET_DOCUMENT = _get(
    "getDocument",
    _DOCUMENT,
    "One document with its chunks, by number or uid",
    m.DocumentDetail,
    query=DocumentQuery,
    links=_DOCUMENT_LINKS,
)

DELETE_DOCUMENT = _delete(
    "deleteDocument",
    _DOCUMENT,
    "Remove one document; for some days `restoreVersion` can restore it, unless it is purged",
    m.Removed,
    query=DeleteQuery,
    if_match=True,
)

GET_ORIGINAL = _get(
    "getOriginal",
    f"{_DOCUMENT}/original",
    "The original file of a document, as it was sent, if it is kept",
    FileContent,
    errors=("original_not_kept",),
)

GET_PICTURE = _get(
    "getPicture",
    f"{_DOCUMENT}/picture",
    "A page of a document's original file as a picture, by default the page of the chunk, or the first; of "
    "an image, the whole",
    m.Picture,
    query=PictureQuery,
    errors=(
        "original_not_kept",
        "unsupported_format",
        "file_corrupt",
        "file_encrypted",
        "extraction_failed",
        "extraction_timeout",
        "extraction_memory",
        "not_ready",
    ),
)

REMOVE_SOURCE = _delete(
    "removeSource",
    f"{_DOCUMENT}/sources",
    "Remove a source from a document. The document is removed with its last source, unless it was also "
    "submitted without one; `documents` is the number of removed documents",
    m.Removed,
    query=SourceQuery,
    if_match=True,
    errors=("source_not_found",),
)

CLEAR_DOCUMENTS = _delete(
    "clearDocuments",
    _DOCUMENTS,
    "Remove all documents and cancel the jobs accepted before; described collections remain",
    m.Removed,
    query=ClearQuery,
    needs="administer",
    errors=("confirmation_required",),
)

LIST_VERSIONS = _get(
    "listVersions",
    _VERSIONS,
    "The kept earlier versions of a document, which may have been removed",
    m.PastVersionList,
    query=PageQuery,
    links=(_READ_VERSION,),
)

GET_VERSION = _get(
    "getVersion",
    _VERSION,
    "An earlier version of a document, with its text",
    m.PastVersionDetail,
    query=VersionQuery,
    links=(Link("restoreVersion", {"document_id": "/document_id", "version": "/version"}),),
)

RESTORE_VERSION: Operation[None, m.Document] = Operation(
    "restoreVersion",
    Method.POST,
    f"{_VERSION}/restore",
    "Restore the content of an earlier version, or a removed document; the present content is kept as a "
    "version",
    m.Document,
    if_match=True,
    errors=("embedder_unavailable",),
    links=(_READ,),
)

PURGE_VERSIONS = _delete(
    "purgeVersions",
    _VERSIONS,
    "Delete the kept versions of a document; a removed document is then deleted permanently",
    m.Purged,
)

LIST_TRASH = _get(
    "listTrash",
    f"{BASE}/trash",
    "The removed documents that can be restored",
    m.PastVersionList,
    query=PageQuery,
    links=(_READ_VERSION,),
)

PATCH_NOTE: Operation[m.NotePatch, m.Document | m.Job] = Operation(
    "patchNote",
    Method.PATCH,
    f"{BASE}/notes/{{document_id}}",
    "Replace a note's text in place; its id and created_at remain. A long update becomes a job",
    m.Document,
    path_parameters={"document_id": NOTE_ID},
    query=NoteQuery,
    body=m.NotePatch,
    if_match=True,
    on_behalf=True,
    accepted=m.Job,
    errors=("queue_full", "not_a_note", "embedder_unavailable"),
    example={"text": "Updated preference: user prefers bullet points"},
    links=(_READ, *_DOCUMENT_LINKS),
)

SET_METADATA: Operation[m.MetadataRequest, m.Document] = Operation(
    "setMetadata",
    Method.PUT,
    f"{_DOCUMENT}/metadata",
    "Replace a document's metadata",
    m.Document,
    body=m.MetadataRequest,
    if_match=True,
    example={"metadata": {"source_type": "wiki", "reviewed": "2026-01-31"}},
    links=(_READ,),
)

GIVE_FEEDBACK: Operation[m.FeedbackRequest, m.Feedback] = Operation(
    "giveFeedback",
    Method.PUT,
    f"{_DOCUMENT}/feedback",
    "Rate a document, or report that it was opened; its version does not change",
    m.Feedback,
    body=m.FeedbackRequest,
    on_behalf=True,
    example={"signal": "useful"},
    links=(Link("getDocument", {"document_id": "/document_id"}),),
)

ADD_TAGS = _post(
    "addTags",
    f"{_DOCUMENT}/tags",
    "Add tags to a document",
    m.TagsRequest,
    m.Document,
    if_match=True,
    example={"tags": ["collection:memory"]},
    links=(_READ, Link("removeTag", {"document_id": "/id", "tag": "/tags/0"})),
)

REMOVE_TAG = _delete(
    "removeTag",
    f"{_DOCUMENT}/tags/{{tag}}",
    "Remove a tag from a document; `add` names another one to add in the same transaction",
    m.Document,
    query=TagQuery,
    needs="write",
    if_match=True,
    links=(_READ,),
)

LIST_TAGS = _get(
    "listTags", f"{BASE}/tags", "Tags, with their numbers of documents and chunks", m.TagList, query=TagsQuery
)

GET_STATUS = _get(
    "getStatus",
    f"{BASE}/status",
    "Version, model, device, counts, queue, storage and issues",
    m.Status,
    query=StatusQuery,
)

GET_HEALTH = _get("getHealth", "/healthz", "Liveness of the process", m.Health, public=True)

GET_READINESS = _get(
    "getReadiness", "/readyz", "Readiness to serve requests", m.Health, errors=("not_ready",), public=True
)

VECTOR_SEARCH = _post(
    "vectorSearch",
    "/vector/search",
    "Find passages by meaning, in one collection or in all",
    r.VectorSearchRequest,
    r.VectorSearchResponse,
    surface=ApiSurface.RAGLER,
    reads=True,
    errors=("contradiction", "collection_not_found", "embedder_unavailable"),
    example={"query": "authentication", "limit": 5},
    links=(Link("getCollection", {"collection_id": "/results/0/metadata/collection_id"}),),
)

LIST_COLLECTIONS = _get(
    "listCollections",
    _COLLECTIONS,
    "All collections, by name",
    r.CollectionList,
    surface=ApiSurface.RAGLER,
    links=(Link("getCollection", {"collection_id": "/collections/0/id"}),),
)

GET_COLLECTION = _get(
    "getCollection",
    _COLLECTION,
    "One collection with its statistics",
    r.CollectionDetail,
    surface=ApiSurface.RAGLER,
    errors=("collection_not_found",),
)

PUT_COLLECTION: Operation[r.CollectionRequest, r.CollectionDetail] = Operation(
    "putCollection",
    Method.PUT,
    _COLLECTION,
    "Describe a collection, or create an empty one",
    r.CollectionDetail,
    surface=ApiSurface.RAGLER,
    body=r.CollectionRequest,
    errors=("collection_exists",),
    example={"name": "api-documentation", "description": "Internal API guides"},
    links=(Link("getCollection", {"collection_id": "/id"}),),
)

OPERATIONS: tuple[AnyOperation, ...] = tuple(
    value for value in list(vars().values()) if isinstance(value, Operation)
)
"""The table of all operations above, in that order."""

BY_ID: Mapping[str, AnyOperation] = {operation.id: operation for operation in OPERATIONS}
"""The operations by id."""


def of_surface(surface: ApiSurface) -> tuple[AnyOperation, ...]:
    """Return the operations of one OpenAPI document."""
    return tuple(operation for operation in OPERATIONS if operation.surface is surface)
