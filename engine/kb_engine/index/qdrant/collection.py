"""The requests of the index to its collection; every failure raises `IndexUnavailable`.

Reads and writes are consistent in a cluster: a write succeeds once most replicas of a shard have it, writes
to a shard are ordered by its leader, and a read queries most replicas. Only a count is answered by a single
replica, so that with several replicas a total or the weight of a word may be slightly outdated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from json import JSONDecodeError

import httpx
from qdrant_client import AsyncQdrantClient
from qdrant_client import models as q
from qdrant_client.common.client_exceptions import QdrantException, ResourceExhaustedResponse
from qdrant_client.http.exceptions import ApiException, ResponseHandlingException, UnexpectedResponse

from kb_engine.index.port import IndexUnavailable
from kb_engine.index.qdrant.points import MEANING, PAYLOAD_INDEXES, WORDS
from kb_engine.index.qdrant.qdrant_settings import QdrantSettings

CONNECTIONS = 32
MOST_VALUES = 1_000_000  # maximum number of distinct values of a payload field in a facet count
_BODY_CHARACTERS = 300


class NoCollection(IndexUnavailable):
    """The collection does not exist."""


def client_for(settings: QdrantSettings) -> AsyncQdrantClient:
    """Return a client that has not made a request yet."""
    return AsyncQdrantClient(
        url=settings.url,
        # As a header, because the client warns if `api_key` is used over plain HTTP.
        headers={"api-key": settings.api_key} if settings.api_key else None,
        timeout=settings.timeout,
        check_compatibility=False,
        limits=httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS),
    )


class Collection:
    """One collection by its name, whether it exists or not.

    Raises (all methods): `IndexUnavailable`, `NoCollection` if it does not exist.
    """

    def __init__(self, client: AsyncQdrantClient, settings: QdrantSettings) -> None:
        self._client = client
        self._settings = settings
        self._name = settings.collection
        self._consistency = q.ReadConsistencyType.MAJORITY if settings.replicas > 1 else None
        self._counting = asyncio.Semaphore(CONNECTIONS // 2)

    async def make(self, dimensions: int) -> None:
        """Create an empty collection, replacing an existing one. With `dimensions` 0 it cannot
        hold vectors.
        """
        await self.drop()
        meaning = {MEANING: q.VectorParams(size=dimensions, distance=q.Distance.DOT)} if dimensions else {}
        with self._mapping_errors():
            await self._client.create_collection(
                self._name,
                vectors_config=meaning,
                sparse_vectors_config={WORDS: q.SparseVectorParams()},
                shard_number=self._settings.shards,
                replication_factor=self._settings.replicas,
                write_consistency_factor=self._settings.written_copies,
            )
            for field, schema in PAYLOAD_INDEXES.items():
                await self._client.create_payload_index(self._name, field, schema, wait=True)

    async def drop(self) -> None:
        """Remove the collection, if it exists."""
        with self._mapping_errors():
            await self._client.delete_collection(self._name)

    async def payload(self, point: int) -> q.Payload | None:
        """Return the payload of a point, or None if there is no such point."""
        with self._mapping_errors():
            found = await self._client.retrieve(
                self._name, [point], with_payload=True, consistency=self._consistency
            )
        return (found[0].payload or {}) if found else None

    async def put(
        self,
        points: list[q.PointStruct],
        mode: q.UpdateMode = q.UpdateMode.UPSERT,
        *,
        where: q.Filter | None = None,
    ) -> None:
        """Insert points, or replace the ones that match `where`; `mode` restricts this to one of the two."""
        with self._mapping_errors():
            await self._client.upsert(
                self._name,
                points,
                wait=True,
                ordering=q.WriteOrdering.STRONG,
                update_filter=where,
                update_mode=mode,
            )

    async def remove(self, those: q.Filter) -> None:
        """Remove the points that match a filter."""
        with self._mapping_errors():
            await self._client.delete(
                self._name, q.FilterSelector(filter=those), wait=True, ordering=q.WriteOrdering.STRONG
            )

    async def query(self, requests: Sequence[q.QueryRequest]) -> list[list[q.ScoredPoint]]:
        """Return the results of several queries, in their order."""
        with self._mapping_errors():
            found = await self._client.query_batch_points(self._name, requests, consistency=self._consistency)
        return [one.points for one in found]

    async def count(self, those: q.Filter) -> int:
        """Return the exact number of points that match a filter."""
        async with self._counting:
            with self._mapping_errors():
                return (await self._client.count(self._name, those, exact=True)).count

    async def values(self, field: str, those: q.Filter) -> dict[int, int]:
        """Return each value of an integer payload field, with the number of matching points that have it."""
        with self._mapping_errors():
            found = await self._client.facet(
                self._name,
                field,
                facet_filter=those,
                limit=MOST_VALUES,
                exact=True,
                consistency=self._consistency,
            )
        return {int(hit.value): hit.count for hit in found.hits}

    async def close(self) -> None:
        await self._client.close()

    @contextmanager
    def _mapping_errors(self) -> Iterator[None]:
        try:
            yield
        except ResourceExhaustedResponse as error:
            raise IndexUnavailable(
                f"{self} takes no more requests now ({error})", retry_after=error.retry_after_s
            ) from error
        except UnexpectedResponse as error:
            raise self._refusal(error) from error
        except ResponseHandlingException as error:
            raise IndexUnavailable(f"{self} {self._fault(error.source)}") from error
        except (JSONDecodeError, UnicodeDecodeError, AssertionError) as error:
            # The client does not wrap the first two, and asserts that a response has a result.
            raise IndexUnavailable(f"{self} {self._fault(error)}") from error
        except (ApiException, QdrantException) as error:
            raise IndexUnavailable(f"{self} cannot be used: {error}") from error

    def _fault(self, source: Exception) -> str:
        if isinstance(source, httpx.TimeoutException):
            return f"did not answer within {self._settings.timeout} s"
        if isinstance(source, httpx.TransportError):
            return f"cannot be reached ({str(source) or type(source).__name__})"
        return f"gave an answer that is none of its protocol ({type(source).__name__})"

    def _refusal(self, error: UnexpectedResponse) -> IndexUnavailable:
        body = " ".join(error.content[:_BODY_CHARACTERS].decode("utf-8", "replace").split())
        match error.status_code:
            case 404:
                return NoCollection(f"{self} has no collection {self._name}")
            case 401 | 403:
                return IndexUnavailable(f"{self} does not accept QDRANT_API_KEY for {self._name}")
            case 429:
                return IndexUnavailable(f"{self} takes no more requests now")
            case status:
                return IndexUnavailable(f"{self} answered {status} {error.reason_phrase}: {body}")

    def __str__(self) -> str:
        return f"Qdrant at {self._settings.url}"
