"""RAGler's backend over HTTP, on the transport that the engine's client has: pool, attempts, circuit."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from kb_contracts.api.operations import (
    GET_COLLECTION,
    GET_READINESS,
    LIST_COLLECTIONS,
    VECTOR_SEARCH,
    AnyOperation,
)
from kb_contracts.api.ragler import SERVICE, USER_ID, USER_ROLE, VectorSearchRequest
from kb_server.clock import SYSTEM_CLOCK, Clock
from kb_server.engine_client.errors import EngineBadAnswer, EngineFault
from kb_server.engine_client.ragler import Collection, CollectionDetail, Collections, Passages
from kb_server.engine_client.ragler_responses import NotThere, read
from kb_server.engine_client.request import EngineRequest, build_request, common_headers
from kb_server.engine_client.retries import RetryPolicy
from kb_server.engine_client.transport import HttpTransport

S = TypeVar("S", bound=msgspec.Struct)

USER = "mcp-server"
"""Who this server is to the backend, which keeps its rate limits by it."""

_HEALTH_SECONDS = 3.0


class HttpRagler:
    """A `Ragler` over aiohttp.

    `url` is the backend's base, `api_key` its bearer key (empty: none is sent), `silence` the seconds without
    a byte after which a call fails. The session is opened by the first call.
    """

    def __init__(
        self,
        url: str,
        api_key: str = "",
        *,
        silence: float = 30.0,
        policy: RetryPolicy | None = None,
        clock: Clock = SYSTEM_CLOCK,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._http = HttpTransport(url, policy=policy, clock=clock, jitter=jitter)
        self._key = api_key
        self._silence = silence

    async def close(self) -> None:
        """Close the pool."""
        await self._http.close()

    async def search(self, request: VectorSearchRequest) -> Passages:
        """`POST /vector/search`."""
        # The limit is told also where it is the contract's default: another backend may have its own.
        body = {**msgspec.to_builtins(request), "limit": request.limit}
        return await self._ask(self._request(VECTOR_SEARCH, body=body), Passages, request.collection_id)

    async def collections(self) -> list[Collection]:
        """`GET /collections`."""
        return (await self._ask(self._request(LIST_COLLECTIONS), Collections)).collections

    async def collection(self, collection_id: str) -> CollectionDetail:
        """`GET /collections/{id}`."""
        request = self._request(GET_COLLECTION, path={"collection_id": collection_id})
        return await self._ask(request, CollectionDetail, collection_id)

    async def reachable(self) -> bool:
        """`GET /readyz`, once and within three seconds; one without such a path is taken to be ready."""
        request = self._request(GET_READINESS, silence=min(self._silence, _HEALTH_SECONDS))
        try:
            response = await self._http.send_once(request, lambda response: response)
        except EngineFault:
            return False
        return response.status < 500

    def _request(
        self, operation: AnyOperation, *, silence: float | None = None, **content: Any
    ) -> EngineRequest:
        headers = {**common_headers(self._key), USER_ID: USER, USER_ROLE: SERVICE}
        silence = self._silence if silence is None else silence
        return build_request(self._http.base, operation, headers, silence=silence, **content)

    async def _ask(self, request: EngineRequest, model: type[S], collection_id: str | None = None) -> S:
        try:
            return await self._http.send(
                request,
                lambda response: read(
                    request.operation, response, model, in_collection=collection_id is not None
                ),
            )
        except NotThere as fault:
            if not await self._lists(collection_id):
                raise
            call = f"{request.operation.method} {request.operation.path}"
            raise EngineBadAnswer(
                f"It does not serve {call} (404) for a collection that it lists."
            ) from fault

    async def _lists(self, collection_id: str | None) -> bool:
        """Whether the backend has this collection in its list; False where it gives none."""
        try:
            return any(collection.id == collection_id for collection in await self.collections())
        except EngineFault:
            return False
