"""Cores behind the routes of the small Qdrant server: Qdrant's own, a model of it, or a server elsewhere."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Protocol
from uuid import uuid4

import qdrant_edge as edge
from pydantic import TypeAdapter
from qdrant_client import AsyncQdrantClient
from qdrant_client import models as q
from qdrant_client.http.models import models as rest

from kb_engine.index.qdrant.collection import client_for
from kb_engine.index.qdrant.qdrant_settings import QdrantSettings

Hits = list[dict[str, Any]]

REAL_URL = os.environ.get("QDRANT_URL", "")
"""URL of a real server, if there is one; tests use collections with names of their own on it."""
REAL_KEY = os.environ.get("QDRANT_API_KEY", "")
_IN_MEMORY = Path("/dev/shm")
_CONDITIONS = TypeAdapter(list[rest.Condition])
_MODES = {
    rest.UpdateMode.UPSERT: edge.UpdateMode.Upsert,
    rest.UpdateMode.INSERT_ONLY: edge.UpdateMode.InsertOnly,
    rest.UpdateMode.UPDATE_ONLY: edge.UpdateMode.UpdateOnly,
}


class Core(Protocol):
    """Implementation behind the routes. All methods raise KeyError if the collection does not exist."""

    async def create(self, name: str, wanted: rest.CreateCollection) -> None: ...
    async def delete(self, name: str) -> bool: ...
    async def index(self, name: str, wanted: rest.CreateFieldIndex) -> None: ...
    async def upsert(self, name: str, wanted: rest.PointsList) -> None: ...
    async def remove(self, name: str, those: rest.Filter) -> None: ...
    async def query(self, name: str, wanted: rest.QueryRequest) -> Hits: ...
    async def count(self, name: str, wanted: rest.CountRequest) -> int: ...
    async def facet(self, name: str, wanted: rest.FacetRequest) -> Hits: ...
    async def retrieve(self, name: str, wanted: rest.PointRequest) -> Hits: ...
    async def close(self) -> None: ...


class LocalCore:
    """The model in Python. It has no payload indexes and compares all vectors."""

    def __init__(self) -> None:
        self._client = AsyncQdrantClient(":memory:")

    async def create(self, name: str, wanted: rest.CreateCollection) -> None:
        await self._client.create_collection(
            name, vectors_config=wanted.vectors or {}, sparse_vectors_config=wanted.sparse_vectors
        )

    async def delete(self, name: str) -> bool:
        return await self._client.delete_collection(self._own(name))

    async def index(self, name: str, wanted: rest.CreateFieldIndex) -> None:
        await self._there(name)

    async def upsert(self, name: str, wanted: rest.PointsList) -> None:
        await self._client.upsert(
            await self._there(name),
            wanted.points,
            update_filter=wanted.update_filter,
            update_mode=wanted.update_mode,
        )

    async def remove(self, name: str, those: rest.Filter) -> None:
        await self._client.delete(await self._there(name), q.FilterSelector(filter=those))

    async def query(self, name: str, wanted: rest.QueryRequest) -> Hits:
        request = wanted.model_copy(update={"params": None})
        (found,) = await self._client.query_batch_points(await self._there(name), [request])
        return [point.model_dump() for point in found.points]

    async def count(self, name: str, wanted: rest.CountRequest) -> int:
        return (await self._client.count(await self._there(name), wanted.filter)).count

    async def facet(self, name: str, wanted: rest.FacetRequest) -> Hits:
        found = await self._client.facet(
            await self._there(name), wanted.key, wanted.filter, limit=wanted.limit or 10, exact=True
        )
        return [hit.model_dump() for hit in found.hits]

    async def retrieve(self, name: str, wanted: rest.PointRequest) -> Hits:
        found = await self._client.retrieve(await self._there(name), wanted.ids, with_payload=True)
        return [record.model_dump() for record in found]

    async def close(self) -> None:
        await self._client.close()

    async def _there(self, name: str) -> str:
        if not await self._client.collection_exists(self._own(name)):
            raise KeyError(name)
        return self._own(name)

    def _own(self, name: str) -> str:
        return name


class RealCore(LocalCore):
    """A server elsewhere; each instance prefixes its collections."""

    def __init__(self) -> None:
        self._client = client_for(QdrantSettings(url=REAL_URL, api_key=REAL_KEY))
        self._prefix = f"test-{uuid4().hex}-"
        self._names: set[str] = set()

    async def create(self, name: str, wanted: rest.CreateCollection) -> None:
        self._names.add(self._own(name))
        await self._client.create_collection(
            self._own(name), vectors_config=wanted.vectors, sparse_vectors_config=wanted.sparse_vectors
        )

    async def index(self, name: str, wanted: rest.CreateFieldIndex) -> None:
        await self._client.create_payload_index(self._own(name), wanted.field_name, wanted.field_schema)

    async def query(self, name: str, wanted: rest.QueryRequest) -> Hits:
        (found,) = await self._client.query_batch_points(await self._there(name), [wanted])
        return [point.model_dump() for point in found.points]

    async def close(self) -> None:
        for name in self._names:
            await self._client.delete_collection(name)
        await self._client.close()

    def _own(self, name: str) -> str:
        return self._prefix + name


class EdgeCore:
    """Qdrant's core with several shards; the id of a point selects its shard."""

    def __init__(self, shards: int = 2) -> None:
        # In memory: the core syncs each index of a collection to disk, which takes seconds and proves nothing
        # here.
        self._folder = Path(mkdtemp(dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None))
        self._shards = shards
        self._collections: dict[str, list[edge.EdgeShard]] = {}
        self._folders: dict[str, list[Path]] = {}

    async def create(self, name: str, wanted: rest.CreateCollection) -> None:
        assert not isinstance(wanted.vectors, rest.VectorParams)
        dense = {
            one: edge.EdgeVectorParams(size=params.size, distance=edge.Distance.Dot)
            for one, params in (wanted.vectors or {}).items()
        }
        sparse = {one: edge.EdgeSparseVectorParams() for one in wanted.sparse_vectors or {}}
        config = edge.EdgeConfig(vectors=dense or None, sparse_vectors=sparse)
        folders = self._folders[name] = [self._folder / uuid4().hex for _ in range(self._shards)]
        for folder in folders:
            folder.mkdir(parents=True)
        self._collections[name] = [edge.EdgeShard.create(str(folder), config) for folder in folders]

    async def delete(self, name: str) -> bool:
        shards = self._collections.pop(name, [])
        for shard in shards:
            shard.close()
        return bool(shards)

    async def index(self, name: str, wanted: rest.CreateFieldIndex) -> None:
        self._update(name, edge.UpdateOperation.create_field_index(wanted.field_name, _schema(wanted)))

    async def upsert(self, name: str, wanted: rest.PointsList) -> None:
        condition = _filter(wanted.update_filter) if wanted.update_filter else None
        mode = _MODES[wanted.update_mode or rest.UpdateMode.UPSERT]
        shards = self._collections[name]
        for number, shard in enumerate(shards):
            points = [_point(point) for point in wanted.points if int(point.id) % len(shards) == number]
            if points:
                shard.update(edge.UpdateOperation.upsert_points(points, condition, mode))

    async def remove(self, name: str, those: rest.Filter) -> None:
        self._update(name, edge.UpdateOperation.delete_points_by_filter(_filter(those)))

    async def query(self, name: str, wanted: rest.QueryRequest) -> Hits:
        assert wanted.limit is not None
        assert isinstance(wanted.query, rest.NearestQuery)
        vector: Any = wanted.query.nearest
        if isinstance(vector, rest.SparseVector):
            vector = edge.SparseVector(vector.indices, vector.values)
        request = edge.QueryRequest(
            limit=wanted.limit,
            query=edge.Query.Nearest(vector, using=wanted.using),
            filter=_filter(wanted.filter) if wanted.filter else None,
            with_payload=wanted.with_payload,
            params=edge.SearchParams(exact=bool(wanted.params and wanted.params.exact)),
        )
        found = [point for shard in self._collections[name] for point in shard.query(request)]
        best = sorted(found, key=lambda point: -point.score)[: wanted.limit]
        return [
            {"id": one.id, "version": one.version, "score": one.score, "payload": one.payload} for one in best
        ]

    async def count(self, name: str, wanted: rest.CountRequest) -> int:
        request = edge.CountRequest(exact=True, filter=_filter(wanted.filter) if wanted.filter else None)
        return sum(shard.count(request) for shard in self._collections[name])

    async def facet(self, name: str, wanted: rest.FacetRequest) -> Hits:
        those = _filter(wanted.filter) if wanted.filter else None
        request = edge.FacetRequest(
            wanted.key, limit=wanted.limit or 10, exact=bool(wanted.exact), filter=those
        )
        counts: Counter[Any] = Counter()
        for shard in self._collections[name]:
            counts.update({hit.value: hit.count for hit in shard.facet(request).hits})
        return [{"value": value, "count": count} for value, count in counts.items()]

    async def retrieve(self, name: str, wanted: rest.PointRequest) -> Hits:
        found = [
            record
            for shard in self._collections[name]
            for record in shard.retrieve(wanted.ids, with_payload=True, with_vector=False)
        ]
        return [{"id": record.id, "payload": record.payload} for record in found]

    def copy(self) -> EdgeCore:
        """Return a copy of this core, which must not be in use meanwhile."""
        made = EdgeCore(self._shards)
        for name, shards in self._collections.items():
            for shard in shards:
                shard.flush()
            places = [(folder, made._folder / folder.name) for folder in self._folders[name]]
            made._folders[name] = [shutil.copytree(*place) for place in places]
            made._collections[name] = [edge.EdgeShard.load(str(folder)) for folder in made._folders[name]]
        return made

    async def close(self) -> None:
        for name in list(self._collections):
            await self.delete(name)
        shutil.rmtree(self._folder, ignore_errors=True)

    def optimize(self) -> None:
        """Build the indexes of segments that have grown; a server does this in the background."""
        for shards in self._collections.values():
            for shard in shards:
                shard.optimize()

    def _update(self, name: str, operation: edge.UpdateOperation) -> None:
        for shard in self._collections[name]:
            shard.update(operation)


def core_of(kind: str) -> Core:
    """A core by its name: `edge` or `real`."""
    return {"edge": EdgeCore, "real": RealCore}[kind]()


def _schema(wanted: rest.CreateFieldIndex) -> Any:
    schema = wanted.field_schema
    if isinstance(schema, rest.KeywordIndexParams):
        return edge.KeywordIndexParams(prefix=schema.prefix)
    if isinstance(schema, rest.IntegerIndexParams):
        return edge.IntegerIndexParams(
            lookup=schema.lookup, range=schema.range, enable_hnsw=schema.enable_hnsw
        )
    if isinstance(schema, rest.BoolIndexParams):
        return edge.BoolIndexParams(enable_hnsw=schema.enable_hnsw)
    assert isinstance(schema, rest.PayloadSchemaType)
    return getattr(edge.PayloadSchemaType, schema.value.capitalize())


def _point(point: rest.PointStruct) -> edge.Point:
    assert isinstance(point.vector, dict)
    vectors = {
        name: edge.SparseVector(one.indices, one.values) if isinstance(one, rest.SparseVector) else one
        for name, one in point.vector.items()
    }
    return edge.Point(point.id, vectors, point.payload)


def _filter(those: rest.Filter) -> edge.Filter:
    parts = {
        name: [_condition(one) for one in _CONDITIONS.validate_python(conditions)]
        for name in ("must", "should", "must_not")
        if (conditions := getattr(those, name)) is not None
    }
    return edge.Filter(**parts)


def _condition(one: Any) -> Any:
    match one:
        case rest.Filter():
            return _filter(one)
        case rest.HasIdCondition():
            return edge.HasIdCondition(set(one.has_id))
        case rest.IsEmptyCondition():
            return edge.IsEmptyCondition(one.is_empty.key)
        case rest.FieldCondition(range=rest.DatetimeRange(gte=gte, lte=lte)):
            ends = {"gte": gte and gte.isoformat(), "lte": lte and lte.isoformat()}
            return edge.FieldCondition(one.key, range=edge.RangeDateTime(**ends))
        case rest.FieldCondition(match=rest.MatchValue(value=value)):
            return edge.FieldCondition(one.key, match=edge.MatchValue(value))
        case rest.FieldCondition(match=rest.MatchAny(any=values)):
            return edge.FieldCondition(one.key, match=edge.MatchAny(values))
        case rest.FieldCondition(match=rest.MatchPrefix(prefix=prefix)):
            return edge.FieldCondition(one.key, match=edge.MatchPrefix(prefix))
    raise AssertionError(f"{one!r} is no condition that this server knows")
