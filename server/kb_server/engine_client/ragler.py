"""The responses of RAGler's backend.

They are read leniently, because the backend need not be kb's engine: unknown members are ignored, and
absent or null members are absent here too.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class PassageMetadata(msgspec.Struct, kw_only=True):
    """The source of a passage. `collection_id` is null if it is in no collection."""

    collection_id: str | None = None
    source_type: str | UnsetType = UNSET
    context_breadcrumbs: str | UnsetType = UNSET
    heading: str | UnsetType = UNSET
    tags: list[str] | UnsetType = UNSET
    last_modified_by: str | UnsetType = UNSET
    last_modified_at: str | UnsetType = UNSET


class Passage(msgspec.Struct, kw_only=True):
    """A matching passage; `score` is from 0 to 1."""

    content: str
    source_url: str | UnsetType = UNSET
    score: float
    metadata: PassageMetadata = msgspec.field(default_factory=PassageMetadata)

    def __post_init__(self) -> None:
        """Limit the score: a cosine may be slightly over 1, and under 0 for unrelated texts."""
        self.score = min(max(self.score, 0.0), 1.0)


class Passages(msgspec.Struct, kw_only=True):
    """Best first. `total` is the number of matches, `execution_time` is in milliseconds."""

    results: list[Passage]
    total: int | UnsetType = UNSET
    execution_time: float | UnsetType = UNSET


class Collection(msgspec.Struct, kw_only=True):
    """A collection; `created_by` is an email address."""

    id: str
    name: str
    description: str | UnsetType = UNSET
    chunk_count: int | UnsetType = UNSET
    created_by: str | UnsetType = UNSET
    created_at: str | UnsetType = UNSET


class Collections(msgspec.Struct, kw_only=True):
    """All collections."""

    collections: list[Collection]


class Statistics(msgspec.Struct, kw_only=True):
    """`avg_chunk_size` is in tokens; `last_published` is the time of the last change."""

    total_tokens: int | UnsetType = UNSET
    avg_chunk_size: float | UnsetType = UNSET
    last_published: str | UnsetType = UNSET


class CollectionDetail(Collection, kw_only=True):
    """A collection with all its details."""

    updated_at: str | UnsetType = UNSET
    target_audience: list[str] | UnsetType = UNSET
    usage_scenarios: list[str] | UnsetType = UNSET
    statistics: Statistics | UnsetType = UNSET
