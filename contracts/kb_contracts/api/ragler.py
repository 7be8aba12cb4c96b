"""The wire models of RAGler's operations: vector search over collections, at the root of the URL.

    POST /vector/search      GET /collections      GET /collections/{id}      PUT /collections/{id}

A collection is what carries the tag `collection:<name>`. It has an id from the moment its name is first
used (`collection_id`), and a description once somebody has put one:

    nobody knows it ── a document carries its tag ──▶ undescribed ── PUT under its own id ──▶ described
          │              ▲── the last one is gone ───────┘                                        ▲
          └── PUT under its own id, or under any UUID that is not derived ────────────────────────┘

A described one stands, empty, when its documents are gone, and goes when all documents are removed with
`collections=true` (`DELETE /api/v1/documents`). Name and id never part. Callers are distinguished by
`X-User-ID`, and what they may do by `X-User-Role`. Names stand as RAGler's clients send and
read them, camelCase where those do. Times are RFC 3339 in UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal
from uuid import NAMESPACE_URL, uuid5

from msgspec import UNSET, Meta, UnsetType, field

from kb_contracts.api.models import MAX_TAGS, Count, Query, Ranking, Request, Response, Score, Tag

USER_ID = "X-User-ID"
"""The header that says on whose behalf a call is made; rate limits are kept by it."""
USER_ROLE = "X-User-Role"
"""The header that says in which role, for every operation; `SERVICE` (in any case) may read and no more."""
SERVICE = "service"
MAX_USER_CHARS = 255
MAX_ROLE_CHARS = 64
CALLER_TEXT = "^[\\x21-\\x7e]([\\x20-\\x7e]*[\\x21-\\x7e])?$"
"""What may stand in the two headers: printable ASCII, no space at either end."""

PREFIX = "collection:"
"""What the tag of a collection begins with; the rest, which is not empty, is its name."""

WINDOW_SECONDS = 60
"""Limits are kept in fixed windows of this length; a user's begins with the first call that counts."""
LIMITS: Mapping[str, int] = {"vectorSearch": 100, "listCollections": 20, "getCollection": 50}
"""Calls a window that one user may make, by operation id. Where no user is named the credential counts."""

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
        examples=["964e0c5d-3fcb-54d9-9ca7-93a92ef721e3"],
    ),
]
CollectionName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=200 - len(PREFIX),
        pattern=r"^[^\x00-\x1f\x7f,/]*[^\x00-\x20\x7f,/]$(?!\n)",
        description="the name in the tag `collection:<name>`, whatever such a tag can carry",
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

_VERSION = 14  # the place of a UUID's version in its text
Moment = Annotated[str, Meta(description="RFC 3339 date or time, inclusive; a date means the whole UTC day")]


def collection_id(name: str) -> str:
    """The id that a collection has of itself: always the same for a name (a UUID of version 5)."""
    return str(uuid5(NAMESPACE_URL, f"urn:kb:collection:{name}"))


def may_have_id(name: str, id_: str) -> bool:
    """Whether a collection may be described under this id: one of version 5 belongs to its own name alone.

    Otherwise a collection could take an id that another name has as soon as a document carries its tag.
    """
    return id_[_VERSION] != "5" or id_ == collection_id(name)


def may_change(role: str | None) -> bool:
    """Whether a caller in this role may do more than read.

    Of several roles, comma-separated as a proxy makes one header of two, none may be `SERVICE`.
    """
    return SERVICE not in {part.strip() for part in (role or "").lower().split(",")}


def names_in(tags: Iterable[str]) -> list[str]:
    """The names of the collections among tags, in their order."""
    return [tag.removeprefix(PREFIX) for tag in tags if tag.startswith(PREFIX) and tag != PREFIX]


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

    query: Query
    collection_name: CollectionName | None = None
    collection_id: CollectionId | None = None
    limit: Annotated[int, Meta(ge=1, le=100, description="how many results at the most")] = 10
    filters: VectorFilters | None = None
    ranking: Ranking | None = None


class VectorMetadata(Response, kw_only=True):
    """What is known of a passage's document.

    `source_type`, `last_modified_by` and `context_breadcrumbs` are the document's metadata of these names;
    `tags` are without those of collections. `collection_id` is that of the collection searched, else of the
    document's first one, null where it is in none. What is no text in the metadata counts as absent.
    """

    collection_id: str | None
    source_type: str
    context_breadcrumbs: str | UnsetType = UNSET
    heading: str | UnsetType = UNSET
    tags: list[str]
    last_modified_by: str
    last_modified_at: str


class VectorResult(Response):
    """One passage. `score` is its cosine with the query, nothing below zero, or the final score of `ranking`.

    `source_url` is the metadata's `source_url` or `url`, else the source path, else the filename, else the
    document's uid as a URN.
    """

    content: str
    source_url: str
    score: Score
    metadata: VectorMetadata


class VectorSearchResponse(Response, rename="camel"):
    """The passages that match, best first.

    `total` counts all that match, whatever the limit is, as that of `POST /search` by meaning does; where
    fewer match than the limit, the nearest of the others follow. `executionTime` is in milliseconds.
    """

    results: list[VectorResult]
    total: Count
    query: str
    execution_time: float


# --- collections ----------------------------------------------------------------------------------


class CollectionSummary(Response):
    """A collection. One that nobody has described has no words, the engine as its creator, and was created
    with the first of its documents."""

    id: str
    name: str
    description: str
    chunk_count: Count
    created_by: str
    created_at: str


class CollectionList(Response):
    """All collections, by name; `total` is how many there are."""

    collections: list[CollectionSummary]
    total: Count


class CollectionStatistics(Response):
    """Tokens are counted as a text is taken in, by the embedding model of that time; of texts that an earlier
    engine took in they are an estimate.

    `last_published` is when a document in it last changed; where there is none, when it was last described.
    """

    total_tokens: Count
    avg_chunk_size: float
    last_published: str


class CollectionDetail(CollectionSummary, kw_only=True):
    """A collection with all that is known of it. `updated_at`: when documents or description last changed."""

    updated_at: str
    target_audience: list[str] | UnsetType = UNSET
    usage_scenarios: list[str] | UnsetType = UNSET
    statistics: CollectionStatistics


class CollectionRequest(Request):
    """`PUT /collections/{id}`: describe a collection, which need not hold anything.

    What is left out is as if it had never been said; without `created_by` the creator stays who it was.
    """

    name: CollectionName
    description: Annotated[str, Meta(max_length=4_000, description="its purpose and context")] = ""
    created_by: EmailAddress | None = None
    target_audience: Annotated[list[Note], Meta(max_length=50)] | None = None
    usage_scenarios: Annotated[list[Note], Meta(max_length=50)] | None = None
