"""Settings of the Qdrant collection and its layout in a cluster. Importing this module imports no client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec

from kb_config.parts import PartSettings
from kb_config.settings import Setting, SettingsError
from kb_engine.endpoint.endpoint_settings import check_key, check_url


class QdrantSettings(PartSettings, frozen=True, kw_only=True):
    """Settings of the Qdrant index, used if `VECTOR_DB_TYPE` is `qdrant`. Times are in seconds."""

    REMOVED: ClassVar[Mapping[str, str]] = {
        "QDRANT_WRITE_REPLICAS": "a majority of QDRANT_REPLICAS confirms each write"
    }
    url: Annotated[str, Setting("QDRANT_URL", "URL of Qdrant, http://HOST:PORT or https://HOST:PORT")] = ""
    api_key: Annotated[str, Setting("QDRANT_API_KEY", "API key of Qdrant; empty: none", secret=True)] = ""
    collection: Annotated[
        str,
        Setting("QDRANT_COLLECTION", "name of the collection, different for each base"),
        msgspec.Meta(pattern="^[A-Za-z0-9_-]{1,255}$"),
    ] = "kb"
    timeout: Annotated[
        int, Setting("QDRANT_TIMEOUT", "time-out of a request to Qdrant, in seconds"), msgspec.Meta(ge=1)
    ] = 5
    shards: Annotated[
        int, Setting("QDRANT_SHARDS", "number of shards of a new collection"), msgspec.Meta(ge=1)
    ] = 1
    replicas: Annotated[
        int,
        Setting("QDRANT_REPLICAS", "number of copies of each shard of a new collection"),
        msgspec.Meta(ge=1),
    ] = 1
    exact_up_to: Annotated[
        int,
        Setting("QDRANT_EXACT_UP_TO", "maximum number of chunks for exact vector search; above: HNSW"),
        msgspec.Meta(ge=0),
    ] = 100_000

    def __post_init__(self) -> None:
        check_key("QDRANT_API_KEY", self.api_key)
        if self.url:
            check_url("QDRANT_URL", self.url, key_variable="QDRANT_API_KEY", example="http://HOST:PORT")

    def check(self) -> None:
        """Check that there is a URL. Raises SettingsError."""
        if not self.url:
            raise SettingsError("QDRANT_URL is missing; VECTOR_DB_TYPE=qdrant needs http://HOST:PORT")

    @property
    def written_copies(self) -> int:
        """Number of copies that must have a write before it succeeds: a majority."""
        return self.replicas // 2 + 1
