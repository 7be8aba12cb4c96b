"""Every operation of an engine, declared once, as data.

From this table come the two OpenAPI documents (the engine API, and RAGler's operations at the root), the
routes that an engine mounts and the paths that the server's client calls. An operation without a handler
stops an engine at its start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kb_contracts.api import models as m
from kb_contracts.api import ragler as r

API_VERSION = "v3.0.0"
"""What `/status` of an engine of this API names at least, and what the server asks for."""

BASE = "/api/v1"
IDEMPOTENCY_KEY = "Idempotency-Key"
IF_MATCH = "If-Match"
MAX_WAIT_SECONDS = 30
UPDATE_WAIT_SECONDS = 20.0
"""How long `patchNote` waits for its job where the caller does not say."""


class Method(StrEnum):
    """HTTP methods in use."""

    GET = "GET"
    POST = "POST"
    PUT = "PUT"
    PATCH = "PATCH"
    DELETE = "DELETE"


class Part(StrEnum):
    """The document that an operation belongs to. An engine serves the first, and the second whole or not."""

    ENGINE = "engine"
    RAGLER = "ragler"


Limit = Annotated[int, Meta(ge=1, le=1_000, description="how many at the most")]
Offset = Annotated[int, Meta(ge=0, le=m.MAX_INTEGER, description="how many to pass over")]


class NoQuery(m.Request):
    """The query of an operation that takes none."""


class PageQuery(m.Request):
    """The query parameters of a list."""

    limit: Limit = 100
    offset: Offset = 0


class JobQuery(m.Request):
    """`GET /jobs/{id}`."""

    wait: Annotated[
        float, Meta(ge=0, le=MAX_WAIT_SECONDS, description="seconds to wait for the job to end")
    ] = 0.0


class NoteQuery(m.Request):
    """`PATCH /notes/{id}`."""

    wait: Annotated[
        float,
        Meta(ge=0, le=MAX_WAIT_SECONDS, description="seconds to wait for the update; then 202 with its job"),
    ] = UPDATE_WAIT_SECONDS


class JobsQuery(PageQuery):
    """`GET /jobs`."""

    status: m.JobStatus | None = None


class DocumentsQuery(PageQuery):
    """`GET /documents`."""

    source_path: m.SourcePath | None = None
    tag: m.Tags | None = None
    doc_type: m.DocType | None = None
    sort_by: Annotated[
        m.SortBy, Meta(description="what has no filename is sorted among the filenames by its title")
    ] = "created_at"
    sort_order: m.SortOrder = "desc"


class DocumentQuery(m.Request):
    """`GET /documents/{id}`."""

    chunks: Annotated[bool, Meta(description="whether to answer with chunks")] = True
    chunk_offset: Offset = 0
    chunk_limit: Limit = 200


class ClearQuery(m.Request):
    """`DELETE /documents`."""

    confirm: Annotated[bool, Meta(description="must be true")] = False
    collections: Annotated[
        bool, Meta(description="whether what was said of collections, and the ids given to them, go too")
    ] = False


class TagsQuery(PageQuery):
    """`GET /tags`."""

    prefix: Annotated[str, Meta(max_length=200)] = ""


DOCUMENT_KEY = Annotated[
    str,
    Meta(
        pattern=r"^([1-9][0-9]{0,18}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})$(?!\n)",
        description="the document's number or its uid",
        examples=["42"],
    ),
]
NOTE_ID = m.DocumentId
JOB_ID = Annotated[
    str,
    Meta(
        pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$(?!\n)",
        description="the job's UUID",
        examples=["3f0c5d7e-9a53-4f1c-8e2b-0b8f3f2f9b11"],
    ),
]


@dataclass(frozen=True, slots=True)
class Link:
    """An operation that can follow: its path parameters, each by its pointer (RFC 6901) into this answer."""

    operation: str
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. `path` is the whole path with `{parameters}`; bodies and answers are Structs.

    `accepted` is what it answers with 202 instead, where the work goes on. A retry under the same
    idempotency key then joins that work, and is never `in_progress`.
    """

    id: str
    method: Method
    path: str
    summary: str
    answer: type[msgspec.Struct]
    status: HTTPStatus = HTTPStatus.OK
    accepted: type[msgspec.Struct] | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    query: type[m.Request] = NoQuery
    body: type[m.Request] | None = None
    multipart: type[m.Request] | None = None
    if_match: bool = False
    errors: tuple[str, ...] = ()
    example: Mapping[str, Any] | None = None
    links: tuple[Link, ...] = ()
    open: bool = False
    """True: answered without a key."""
    reads: bool = False
    """True: a POST that changes nothing."""
    on_behalf: bool = False
    """True: `X-User-ID` says for whom, so that an engine can let its callers take turns."""
    part: Part = Part.ENGINE

    @property
    def mutates(self) -> bool:
        """Whether it honours `Idempotency-Key`."""
        return not (self.reads or self.method is Method.GET)

    @property
    def excludes_retries(self) -> bool:
        """Whether a retry is refused as `in_progress` while the first request runs."""
        return self.mutates and self.accepted is None

    @property
    def names_user(self) -> bool:
        """Whether it looks at `X-User-ID`."""
        return self.on_behalf or self.part is Part.RAGLER

    @property
    def idempotent(self) -> bool:
        """Whether repeating it unasked is safe even without an idempotency key."""
        return not self.mutates


_JOB_LINKS = (
    Link("getJob", {"job_id": "/id"}),
    Link("cancelJob", {"job_id": "/id"}),
)
_READ = Link("getDocument", {"document_id": "/id"})
_DOCUMENT_LINKS = (
    Link("addTags", {"document_id": "/id"}),
    Link("removeTag", {"document_id": "/id", "tag": "/tags/0"}),
    Link("patchNote", {"document_id": "/id"}),
    Link("deleteDocument", {"document_id": "/id"}),
)
_MUTATION = ("idempotency_mismatch", "in_progress", "storage_full")

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        id="search",
        method=Method.POST,
        path=f"{BASE}/search",
        summary="Find passages by words, by meaning, or both",
        reads=True,
        body=m.SearchRequest,
        answer=m.SearchResponse,
        errors=("contradiction", "embedder_unavailable"),
        links=(Link("getDocument", {"document_id": "/results/0/document/id"}),),
        example={"query": "pension revaluation", "top": 5},
    ),
    Operation(
        id="createJob",
        method=Method.POST,
        path=f"{BASE}/jobs",
        summary="Take in a note (JSON) or a file (multipart)",
        body=m.NoteRequest,
        multipart=m.FileFields,
        answer=m.Job,
        status=HTTPStatus.ACCEPTED,
        errors=(*_MUTATION, "unsupported_format", "queue_full"),
        example={"text": "User prefers concise responses", "tags": ["collection:memory"]},
        links=_JOB_LINKS,
        on_behalf=True,
    ),
    Operation(
        id="listJobs",
        method=Method.GET,
        path=f"{BASE}/jobs",
        summary="Jobs, newest first",
        query=JobsQuery,
        answer=m.JobList,
        links=(Link("getJob", {"job_id": "/jobs/0/id"}),),
    ),
    Operation(
        id="getJob",
        method=Method.GET,
        path=f"{BASE}/jobs/{{job_id}}",
        summary="One job; `wait` holds the answer until it has ended",
        parameters={"job_id": JOB_ID},
        query=JobQuery,
        answer=m.Job,
        errors=("job_not_found",),
        links=(Link("getDocument", {"document_id": "/document_id"}),),
    ),
    Operation(
        id="cancelJob",
        method=Method.DELETE,
        path=f"{BASE}/jobs/{{job_id}}",
        summary="Cancel a job that has not ended",
        parameters={"job_id": JOB_ID},
        answer=m.Job,
        errors=(*_MUTATION, "job_not_found", "job_finished"),
    ),
    Operation(
        id="retryJob",
        method=Method.POST,
        path=f"{BASE}/jobs/{{job_id}}/retry",
        summary="Queue a failed job again, with what was sent for it",
        parameters={"job_id": JOB_ID},
        answer=m.Job,
        status=HTTPStatus.ACCEPTED,
        errors=(*_MUTATION, "job_not_found", "job_not_retryable", "queue_full"),
        links=_JOB_LINKS,
    ),
    Operation(
        id="listDocuments",
        method=Method.GET,
        path=f"{BASE}/documents",
        summary="Documents, filtered and sorted",
        query=DocumentsQuery,
        answer=m.DocumentList,
        links=(Link("getDocument", {"document_id": "/documents/0/id"}),),
    ),
    Operation(
        id="getDocument",
        method=Method.GET,
        path=f"{BASE}/documents/{{document_id}}",
        summary="One document with its chunks, by number or uid",
        parameters={"document_id": DOCUMENT_KEY},
        query=DocumentQuery,
        answer=m.DocumentDetail,
        errors=("document_not_found",),
        links=_DOCUMENT_LINKS,
    ),
    Operation(
        id="deleteDocument",
        method=Method.DELETE,
        path=f"{BASE}/documents/{{document_id}}",
        summary="Remove one document",
        parameters={"document_id": DOCUMENT_KEY},
        answer=m.Removed,
        errors=(*_MUTATION, "document_not_found"),
    ),
    Operation(
        id="clearDocuments",
        method=Method.DELETE,
        path=f"{BASE}/documents",
        summary="Remove all documents and cancel the jobs accepted before; described collections stay",
        query=ClearQuery,
        answer=m.Removed,
        errors=(*_MUTATION, "confirmation_required"),
    ),
    Operation(
        id="patchNote",
        method=Method.PATCH,
        path=f"{BASE}/notes/{{document_id}}",
        summary="Replace a note's text in place; its id and created_at stay. What takes long is a job",
        parameters={"document_id": NOTE_ID},
        query=NoteQuery,
        body=m.NotePatch,
        on_behalf=True,
        answer=m.Document,
        accepted=m.Job,
        errors=(
            *_MUTATION,
            "queue_full",
            "document_not_found",
            "not_a_note",
            "version_conflict",
            "embedder_unavailable",
        ),
        example={"text": "Updated preference: user prefers bullet points"},
        links=(_READ, *_DOCUMENT_LINKS),
    ),
    Operation(
        id="addTags",
        method=Method.POST,
        path=f"{BASE}/documents/{{document_id}}/tags",
        summary="Add tags to a document",
        parameters={"document_id": DOCUMENT_KEY},
        body=m.TagsRequest,
        if_match=True,
        answer=m.Document,
        errors=(*_MUTATION, "document_not_found", "version_conflict"),
        example={"tags": ["collection:memory"]},
        links=(_READ, Link("removeTag", {"document_id": "/id", "tag": "/tags/0"})),
    ),
    Operation(
        id="removeTag",
        method=Method.DELETE,
        path=f"{BASE}/documents/{{document_id}}/tags/{{tag}}",
        summary="Take a tag off a document",
        parameters={"document_id": DOCUMENT_KEY, "tag": m.Tag},
        if_match=True,
        answer=m.Document,
        errors=(*_MUTATION, "document_not_found", "tag_not_found", "version_conflict"),
        links=(_READ,),
    ),
    Operation(
        id="listTags",
        method=Method.GET,
        path=f"{BASE}/tags",
        summary="Tags with how much carries them",
        query=TagsQuery,
        answer=m.TagList,
    ),
    Operation(
        id="getStatus",
        method=Method.GET,
        path=f"{BASE}/status",
        summary="Version, model, device, counts, queue, storage and issues",
        answer=m.Status,
    ),
    Operation(
        id="getHealth",
        method=Method.GET,
        path="/healthz",
        summary="Whether the process lives",
        answer=m.Health,
        open=True,
    ),
    Operation(
        id="getReadiness",
        method=Method.GET,
        path="/readyz",
        summary="Whether it can serve",
        answer=m.Health,
        errors=("not_ready",),
        open=True,
    ),
    Operation(
        id="vectorSearch",
        method=Method.POST,
        path="/vector/search",
        summary="Find passages by meaning, in one collection or in all",
        part=Part.RAGLER,
        reads=True,
        body=r.VectorSearchRequest,
        answer=r.VectorSearchResponse,
        errors=("contradiction", "collection_not_found", "rate_limited", "embedder_unavailable"),
        example={"query": "authentication", "limit": 5},
        links=(Link("getCollection", {"collection_id": "/results/0/metadata/collection_id"}),),
    ),
    Operation(
        id="listCollections",
        method=Method.GET,
        path="/collections",
        summary="All collections, by name",
        part=Part.RAGLER,
        answer=r.CollectionList,
        errors=("rate_limited",),
        links=(Link("getCollection", {"collection_id": "/collections/0/id"}),),
    ),
    Operation(
        id="getCollection",
        method=Method.GET,
        path="/collections/{collection_id}",
        summary="One collection with its statistics",
        part=Part.RAGLER,
        parameters={"collection_id": r.CollectionId},
        answer=r.CollectionDetail,
        errors=("collection_not_found", "rate_limited"),
    ),
    Operation(
        id="putCollection",
        method=Method.PUT,
        path="/collections/{collection_id}",
        summary="Describe a collection, or make an empty one",
        part=Part.RAGLER,
        parameters={"collection_id": r.CollectionId},
        body=r.CollectionRequest,
        answer=r.CollectionDetail,
        errors=(*_MUTATION, "forbidden", "collection_exists"),
        example={"name": "api-documentation", "description": "Internal API guides"},
        links=(Link("getCollection", {"collection_id": "/id"}),),
    ),
)

BY_ID: Mapping[str, Operation] = {operation.id: operation for operation in OPERATIONS}
"""The operations by id."""


def of_part(part: Part) -> tuple[Operation, ...]:
    """The operations of one document."""
    return tuple(operation for operation in OPERATIONS if operation.part is part)
