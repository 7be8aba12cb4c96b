"""RAGler's backend over HTTP, on the transport of the engine client: pool, attempts, circuit breaker.

Responses are read leniently: backends name members differently, and do not always say which thing is missing.
"""

from __future__ import annotations

import random
import re
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from kb_contracts.api import operations as ops
from kb_contracts.api.ragler import SERVICE, USER_ID, USER_ROLE, VectorSearchRequest
from kb_server.access.grants import GRANT
from kb_server.engine_client.client import (
    Key,
    build_request,
    key_finder,
    narrowing,
    read_json,
)
from kb_server.engine_client.errors import EngineBadAnswer, EngineFault, EngineTooOld, RateLimited, Refused
from kb_server.engine_client.http1 import RawResponse
from kb_server.engine_client.problems import FORBIDDEN, fault_of, problem_of
from kb_server.engine_client.ragler import Collection, CollectionDetail, Collections, Passages
from kb_server.engine_client.transport import HEALTH_SECONDS, EngineRequest, Exchange, HttpTransport
from kb_server.waiting import SYSTEM_CLOCK, Clock

S = TypeVar("S", bound=msgspec.Struct)

USER = "mcp-server"
"""The user name of this server, by which the backend keeps its rate limits."""

NOT_FOUND = "collection_not_found"
"""Besides `FORBIDDEN`, the reason of `Refused` that can be derived from a status alone."""
_CAPITAL = re.compile(r"(?<=[a-z0-9])[A-Z]")


class HttpRagler:
    """RAGler's backend over HTTP, or over `exchange`.

    Raises (all methods but `reachable`): `EngineFault`, see the tree in `errors`. A missing collection is
    `Refused` with the reason `collection_not_found`, a forbidden operation with `forbidden`.

    `url` is the backend's base, `api_key` its bearer key (empty: no key is sent), `read_timeout` the time
    without a byte after which a call fails, in seconds. `tls` and `exchange` are passed to `HttpTransport`.
    The first call connects. `ensure_reach` raises EngineFault if the backend is not known to enforce access
    scopes; without it callers with a restricted scope are refused.
    """

    def __init__(
        self,
        url: str,
        api_key: Key = "",
        *,
        read_timeout: float = 30.0,
        clock: Clock = SYSTEM_CLOCK,
        jitter: Callable[[], float] = random.random,
        ensure_reach: Callable[[], Awaitable[None]] | None = None,
        exchange: Exchange | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._http = HttpTransport(url, clock=clock, jitter=jitter, exchange=exchange, tls=tls)
        self._ensure_reach = ensure_reach or refuse_narrowed
        self._find_key = key_finder(api_key)
        self._read_timeout = read_timeout

    async def close(self) -> None:
        """Close the pool."""
        await self._http.close()

    async def search(self, request: VectorSearchRequest) -> Passages:
        """`POST /vector/search`."""
        # The limit is sent even if it is the contract's default: another backend may have its own.
        body = {**msgspec.to_builtins(request), "limit": request.limit}
        return await self._ask(self._request(ops.VECTOR_SEARCH, body=body), Passages, request.collection_id)

    async def collections(self) -> list[Collection]:
        """`GET /collections`."""
        return (await self._ask(self._request(ops.LIST_COLLECTIONS), Collections)).collections

    async def collection(self, collection_id: str) -> CollectionDetail:
        """`GET /collections/{id}`."""
        request = self._request(ops.GET_COLLECTION, path={"collection_id": collection_id})
        return await self._ask(request, CollectionDetail, collection_id)

    async def reachable(self) -> bool:
        """Call `GET /readyz`, once and within three seconds; a backend without this path counts as ready."""
        request = self._request(ops.GET_READINESS, read_timeout=min(self._read_timeout, HEALTH_SECONDS))
        try:
            response = await self._http.send_once(request, lambda response: response)
        except EngineFault:
            return False
        return response.status < 500

    def _request(
        self, operation: ops.AnyOperation, *, read_timeout: float | None = None, **content: Any
    ) -> EngineRequest:
        headers = {USER_ID: USER, USER_ROLE: SERVICE, **narrowing(GRANT.get())}
        read_timeout = self._read_timeout if read_timeout is None else read_timeout
        key = self._find_key()
        return build_request(self._http.base, operation, key, headers, read_timeout=read_timeout, **content)

    async def _ask(self, request: EngineRequest, model: type[S], collection_id: str | None = None) -> S:
        await self._ensure_reach()
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
        """True if the backend lists this collection; False if it gives no list."""
        try:
            return any(collection.id == collection_id for collection in await self.collections())
        except EngineFault:
            return False


async def refuse_narrowed() -> None:
    """Refuse callers with a restricted access scope.
    Raises EngineTooOld: the caller's scope is restricted.
    """
    if GRANT.get().access.reach is not None:
        raise EngineTooOld("It does not support keys limited to collections, so they cannot be used with it.")


class NotThere(Refused):
    """A 404 that does not say if the collection or the operation is missing."""


def read(
    operation: ops.AnyOperation, response: RawResponse, model: type[S], *, in_collection: bool = False
) -> S:
    """Return the response as `model`, without null members; `in_collection`: it is about one collection.

    Members may be named `created_by` or `createdBy`: both occur in backends of this API.
    Raises EngineFault: it is not a success, or cannot be read. A 404 about one collection is `NotThere`
    unless the backend says which thing is missing.
    """
    if not 200 <= response.status < 300:
        raise _fault(operation, response, in_collection=in_collection)
    return read_json(
        operation, response, lambda body: msgspec.convert(_normalized(msgspec.json.decode(body)), model)
    )


def _fault(operation: ops.AnyOperation, response: RawResponse, *, in_collection: bool) -> EngineFault:
    fault = fault_of(operation, response, now=datetime.now(UTC))
    code = problem_of(response).get("code")
    match response.status:
        case 403:
            return Refused(FORBIDDEN, fault.detail)
        case 404 if in_collection and code == NOT_FOUND:
            return Refused(NOT_FOUND, fault.detail)
        case 404 if in_collection and code != "route_not_found":
            return NotThere(NOT_FOUND, fault.detail)
        case 429:
            return RateLimited(fault.detail, retry_after=fault.retry_after)
        case _:
            return fault


def _normalized(value: Any) -> Any:
    """Return `value` without null members, with names in snake case, which have precedence."""
    if isinstance(value, list):
        return [_normalized(item) for item in value]
    if not isinstance(value, dict):
        return value
    members = {name: _normalized(member) for name, member in value.items() if member is not None}
    return {_CAPITAL.sub(_lowered, name): member for name, member in members.items()} | {
        name: member for name, member in members.items() if not _CAPITAL.search(name)
    }


def _lowered(capital: re.Match[str]) -> str:
    return f"_{capital.group().lower()}"
