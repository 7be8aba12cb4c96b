"""The wire models of RAGler's operations: vector search over collections, at the root of the URL.

    POST /vector/search      GET /collections      GET /collections/{id}      PUT /collections/{id}

A collection is what carries the tag `collection:<name>`. It has an id from the moment its name is first
used (`collection_id`), and a description once somebody has put one. Callers are told apart by `X-User-ID`,
and what they may do by `X-User-Role`. Names stand as RAGler's clients send and read them, camelCase where
those do. Times are RFC 3339 in UTC.
"""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import NAMESPACE_URL, uuid5

from msgspec import UNSET, Meta, UnsetType, field

from kb_contracts.models import MAX_QUERY_CHARS, MAX_TAGS, Answer, Count, Request, Score, Tag

USER_ID = "X-User-ID"
"""The header that says on whose behalf a call is made; rate limits are kept by it."""
USER_ROLE = "X-User-Role"
"""The header that says in which role; `SERVICE` may read and no more."""
SERVICE = "service"

WINDOW_SECONDS = 60
"""Limits are kept in fixed windows of this length."""
LIMITS = {"vectorSearch": 100, "listCollections": 20, "getCollection": 50}
"""Calls a window that one user may make, by operation id."""

ENGINE_USER = "kb@localhost"
"""Who created what nobody claims: the engine itself."""
DEFAULT_SOURCE_TYPE = "manual"
"""What a document is whose metadata names no `source_type`."""

SourceType = Literal["confluence", "web", "manual"]
CollectionId = Annotated[
    str,
    Meta(
        pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$(?!\n)",
        description="the collection's UUID",
        examples=["8f0c5d7e-9a53-5f1c-8e2b-0b8f3f2f9b11"],
    ),
]
CollectionName = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$(?!\n)",
        description="the name in the tag `collection:<name>`",
        examples=["documents"],
    ),
]
EmailAddress = Annotated[
    str,
    Meta(min_length=3, max_length=254, pattern=r"^[^@\s]+@[^@\s]+$(?!\n)", description="an email address"),
]
Note = Annotated[str, Meta(min_length=1, max_length=200)]
Moment = Annotated[str, Meta(description="RFC 3339 date or time, inclusive; a date means the whole UTC day")]


def collection_id(name: str) -> str:
    """The id of a collection that nobody has described: always the same for a name (a UUID of version 5)."""
    return str(uuid5(NAMESPACE_URL, f"urn:kb:collection:{name}"))


# --- search ---------------------------------------------------------------------------------------


class VectorFilters(Request):
    """Conditions on the documents; dates are those of their last change."""

    source_type: SourceType | None = None
    date_from: Moment | None = None
    date_to: Moment | None = None
    tags: Annotated[list[Tag], Meta(max_length=MAX_TAGS, description="at least one of these")] = field(
        default_factory=list
    )


class VectorSearchRequest(Request, rename="camel"):
    """`POST /vector/search`. Without a name and an id all collections are searched."""

    query: Annotated[str, Meta(min_length=1, max_length=MAX_QUERY_CHARS)]
    collection_name: CollectionName | None = None
    collection_id: CollectionId | None = None
    limit: Annotated[int, Meta(ge=1, le=100, description="how many results at the most")] = 10
    filters: VectorFilters | None = None


class VectorMetadata(Answer, kw_only=True):
    """What is known of a passage's document.

    `source_type`, `last_modified_by` and `context_breadcrumbs` are the document's metadata of these names;
    `tags` are without the collection's, `collection_id` is null where it is in none.
    """

    collection_id: str | None
    source_type: str
    context_breadcrumbs: str | UnsetType = UNSET
    heading: str | UnsetType = UNSET
    tags: list[str]
    last_modified_by: str
    last_modified_at: str


class VectorResult(Answer):
    """One passage. `score` is its cosine with the query, nothing below zero."""

    content: str
    source_url: str
    score: Score
    metadata: VectorMetadata


class VectorSearchResponse(Answer, rename="camel"):
    """Best first. `total` counts the passages that match, `executionTime` is in milliseconds."""

    results: list[VectorResult]
    total: Count
    query: str
    execution_time: float


# --- collections ----------------------------------------------------------------------------------


class CollectionSummary(Answer):
    """A collection. One that nobody has described has no words, and the engine as its creator."""

    id: str
    name: str
    description: str
    chunk_count: Count
    created_by: str
    created_at: str


class CollectionList(Answer):
    """All collections, by name."""

    collections: list[CollectionSummary]


class CollectionStatistics(Answer):
    """`avg_chunk_size` is in tokens; `last_published` is when a document in it last changed."""

    total_tokens: Count
    avg_chunk_size: float
    last_published: str


class CollectionDetail(CollectionSummary, kw_only=True):
    """A collection with all that is known of it."""

    updated_at: str
    target_audience: list[str] | UnsetType = UNSET
    usage_scenarios: list[str] | UnsetType = UNSET
    statistics: CollectionStatistics


class CollectionRequest(Request):
    """`PUT /collections/{id}`: describe a collection, which need not hold anything. A name never changes."""

    name: CollectionName
    description: Annotated[str, Meta(max_length=4_000, description="its purpose and context")] = ""
    created_by: EmailAddress = ENGINE_USER
    target_audience: Annotated[list[Note], Meta(max_length=50)] | None = None
    usage_scenarios: Annotated[list[Note], Meta(max_length=50)] | None = None
