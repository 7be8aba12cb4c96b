"""The wire models of RAGler's operations: vector search over collections, at the root of the URL.

    POST /vector/search      GET /collections      GET /collections/{id}      PUT /collections/{id}

A collection is the set of documents with the tag `collection:<name>`. It has an id from the first use of its
name (`collection_id`), and a description after a PUT:

    unknown ──────── a document carries its tag ──▶ undescribed ── PUT under its own id ──▶ described
       │             ▲── the last one is removed ──────┘                                        ▲
       └── PUT under its own id, or under any UUID that is not derived ─────────────────────────┘

A described collection remains, empty, after its documents are removed. It is removed when all documents are
removed with `collections=true` (`DELETE /api/v1/documents`). The pairing of name and id never changes.
`X-User-ID` identifies callers, and `X-User-Role` determines their rights. Names are spelled as RAGler's
clients send and read them, partly in camelCase. Times are RFC 3339 in UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal
from uuid import NAMESPACE_URL, uuid5

from msgspec import UNSET, Meta, UnsetType, field

from kb_contracts.api.models import MAX_TAGS, UUID, Count, Query, Ranking, Request, Response, Score, Tag

USER_ID = "X-User-ID"
"""The header with the user on whose behalf a call is made; rate limits count by it."""
USER_ROLE = "X-User-Role"
"""The header with the caller's role, for every operation; `SERVICE` (in any case) may only read."""
SERVICE = "service"
MAX_USER_CHARS = 255
MAX_ROLE_CHARS = 64
CALLER_TEXT = "^[\\x21-\\x7e]([\\x20-\\x7e]*[\\x21-\\x7e])?$"
"""Pattern of both headers: printable ASCII, no space at either end."""

PREFIX = "collection:"
"""Prefix of a collection's tag; the rest, which is not empty, is its name."""

WINDOW_SECONDS = 60
"""Length of the fixed windows of rate limits, in seconds; a user's first counted call begins a window."""
LIMITS: Mapping[str, int] = {"vectorSearch": 100, "listCollections": 20, "getCollection": 50}
"""Maximum calls of one user in a window, by operation id. Without a user, calls count by credential."""

ENGINE_USER = "kb@localhost"
"""Creator of collections without a named creator: the engine itself."""
DEFAULT_SOURCE_TYPE = "manual"
"""Source type of a document without `source_type` in its metadata."""

SourceType = Literal["confluence", "web", "manual"]
CollectionId = Annotated[
    str,
    Meta(
        pattern=rf"^{UUID}$(?!\n)",
        description="the collection's UUID",
        examples=["964e0c5d-3fcb-54d9-9ca7-93a92ef721e3"],
    ),
]
CollectionName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=200 - len(PREFIX),
        pattern=r"^[^\x00-\x1f\x7f,/]*[^\x00-\x20\x7f,/]$(?!\n)",
        description="the name in the tag `collection:<name>`, of any characters permitted in a tag",
        examples=["api-documentation"],
    ),
]
EmailAddress = Annotated[
    str,
    Meta(
        min_length=3,
        max_length=254,
        pattern=r"^[^@\x00-\x20\x7f]+@[^@\x00-\x20\x7f]+$(?!\n)",
        description="an email address",
    ),
]
Note = Annotated[str, Meta(min_length=1, max_length=200)]

_VERSION = 14  # the position of a UUID's version in its text
Moment = Annotated[str, Meta(description="RFC 3339 date or time, inclusive; a date means the whole UTC day")]


def collection_id(name: str) -> str:
    """Return the default id of a collection: a function of its name (a UUID of version 5)."""
    return str(uuid5(NAMESPACE_URL, f"urn:kb:collection:{name}"))


def may_have_id(name: str, id_: str) -> bool:
    """True if a collection may be described under this id: an id of version 5 belongs to its own name only.

    Otherwise a collection could take the id that another name gets as soon as a document carries its tag.
    """
    return id_[_VERSION] != "5" or id_ == collection_id(name)


def may_change(role: str | None) -> bool:
    """True if this role may do more than read. A proxy joins two headers with a comma."""
    return SERVICE not in {part.strip() for part in (role or "").lower().split(",")}


def names_in(tags: Iterable[str]) -> list[str]:
    """Return the names of the collections among tags, in their order."""
    return [tag.removeprefix(PREFIX) for tag in tags if tag.startswith(PREFIX) and tag != PREFIX]


# --- search ---------------------------------------------------------------------------------------


class VectorFilters(Request):
    """Conditions on the documents; dates refer to their last change."""

    source_type: SourceType | None = None
    date_from: Moment | None = None
    date_to: Moment | None = None
    tags: Annotated[
        list[Tag], Meta(max_length=MAX_TAGS, description="tags, at least one of them required")
    ] = field(default_factory=list)


class VectorSearchRequest(Request, rename="camel"):
    """`POST /vector/search`. Without a name and an id all collections are searched."""

    query: Query
    collection_name: CollectionName | None = None
    collection_id: CollectionId | None = None
    limit: Annotated[int, Meta(ge=1, le=100, description="maximum number of results")] = 10
    filters: VectorFilters | None = None
    ranking: Ranking | None = None


class VectorMetadata(Response, kw_only=True):
    """Properties of a passage's document.

    `source_type`, `last_modified_by` and `context_breadcrumbs` are the document's metadata of these names;
    `tags` are the tags without collections. `collection_id` is that of the searched collection, otherwise of
    the document's first collection, or null. Metadata that are not text count as absent.
    """

    collection_id: str | None
    source_type: str
    context_breadcrumbs: str | UnsetType = UNSET
    heading: str | UnsetType = UNSET
    tags: list[str]
    last_modified_by: str
    last_modified_at: str


class VectorResult(Response):
    """One passage. `score` is its cosine with the query, at least zero, or the final score of `ranking`.

    `source_url` is the first of these that exists: `source_url` in the metadata, `url` in the metadata, the
    source path, the filename, the document's uid as a URN.
    """

    content: str
    source_url: str
    score: Score
    metadata: VectorMetadata


class VectorSearchResponse(Response, rename="camel"):
    """The matching passages, best first.

    `total` counts all matches, independent of the limit, as in `POST /search` by meaning; if fewer match than
    the limit, the nearest remaining passages follow. `executionTime` is in milliseconds.
    """

    results: list[VectorResult]
    total: Count
    query: str
    execution_time: float


# --- collections ----------------------------------------------------------------------------------


class CollectionSummary(Response):
    """A collection.

    Without a description it has an empty one, the engine as its creator, and the creation time of its first
    document.
    """

    id: str
    name: str
    description: str
    chunk_count: Count
    created_by: str
    created_at: str


class CollectionList(Response):
    """All collections, by name; `total` is their number."""

    collections: list[CollectionSummary]
    total: Count


class CollectionStatistics(Response):
    """Statistics of a collection.

    Tokens are counted at ingestion, by the embedding model of that time; for texts ingested by an earlier
    engine they are an estimate. `last_published` is the last change of a document in the collection; without
    documents, of its description.
    """

    total_tokens: Count
    avg_chunk_size: float
    last_published: str


class CollectionDetail(CollectionSummary, kw_only=True):
    """A collection with all its properties. `updated_at`: the last change of its documents or description."""

    updated_at: str
    target_audience: list[str] | UnsetType = UNSET
    usage_scenarios: list[str] | UnsetType = UNSET
    statistics: CollectionStatistics


class CollectionRequest(Request):
    """`PUT /collections/{id}`: describe a collection, which may be empty.

    The description is replaced as a whole: omitted members are cleared, except `created_by`, which keeps its
    value.
    """

    name: CollectionName
    description: Annotated[str, Meta(max_length=4_000, description="its purpose and context")] = ""
    created_by: EmailAddress | None = None
    target_audience: Annotated[list[Note], Meta(max_length=50)] | None = None
    usage_scenarios: Annotated[list[Note], Meta(max_length=50)] | None = None
