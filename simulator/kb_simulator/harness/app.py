"""The aiohttp adapter: the contract's operations over the state, with faults and the journal around them.

request ─▶ page ─▶ namespace ─▶ key ─▶ body ─▶ journal ─▶ faults ─▶ contract ─▶ state
                                                   ▲          │
                                                   └── answer ┘
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from kb_contracts.api.errors import PROBLEM_JSON, EngineError, Problem
from kb_contracts.api.operations import IDEMPOTENCY_KEY, OPERATIONS, AnyOperation
from kb_contracts.http.mount import (
    build_application,
    check_origin,
    check_unrepeated,
    is_probe,
    problem_response,
)
from kb_simulator.engine.call import CURRENT, Call, Upload
from kb_simulator.engine.handlers import handlers
from kb_simulator.engine.uploads import read_body
from kb_simulator.harness.effects import ResetResponse, answer
from kb_simulator.harness.fault_registry import NOTHING, Plan
from kb_simulator.harness.journal import Entry
from kb_simulator.harness.namespaces import Namespace, Namespaces, bearer
from kb_simulator.harness.recorded_request import RecordedRequest, record_request

_BY_ROUTE: Mapping[tuple[str, str], AnyOperation] = {
    (operation.method.value, operation.path): operation for operation in OPERATIONS
}
_JSON = "application/json"


def build_app(namespaces: Namespaces, *, max_upload_bytes: int, host: str = "127.0.0.1") -> web.Application:
    """The fake engine over `namespaces`; `max_upload_bytes` bounds one file, `host` is listened on.

    Run it with `handler_cancellation`, so that who hangs up is let go.
    """
    app = build_application(handlers())
    app.middlewares.insert(0, _rim(namespaces, max_upload_bytes, host))

    async def let_go(_app: web.Application) -> None:
        namespaces.release()

    app.on_shutdown.append(let_go)
    return app


def _rim(namespaces: Namespaces, max_upload_bytes: int, host: str) -> Any:
    @web.middleware
    async def rim(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if not is_probe(request):
                check_unrepeated(request.headers)
            if not namespaces.key_for(request.headers):
                check_origin(request.headers, host)
            namespace = namespaces.chosen_by(request.headers)
        except EngineError as error:
            return problem_response(error)
        operation = _BY_ROUTE.get((request.method, _route(request)))
        key = request.headers.get(IDEMPOTENCY_KEY)
        busy: EngineError | None = None
        with ExitStack() as held:
            if operation is not None and operation.excludes_retries:
                try:
                    held.enter_context(namespace.keys.hold(bearer(request.headers), operation.id, key))
                except EngineError as error:
                    busy = error
            return await _answer(namespace, operation, busy, max_upload_bytes, request, handler)

    return rim


async def _answer(
    namespace: Namespace,
    operation: AnyOperation | None,
    busy: EngineError | None,
    max_upload_bytes: int,
    request: web.Request,
    handler: Handler,
) -> web.StreamResponse:
    """Read the request, note it down, and answer it; `busy` where another one has its idempotency key."""
    upload: Upload | None = None
    refused = _key_refusal(namespace, request) or busy
    body = b""
    if refused is None:
        try:
            body, upload = await read_body(request, operation, max_upload_bytes)
        except EngineError as error:
            refused = error
    operation_id = operation.id if operation else None
    recorded = record_request(
        request.method, request.path, request.query_string, operation_id, request.headers, body
    )
    elapsed = namespace.clock.elapsed()
    entry = namespace.journal.begin(recorded, elapsed)
    plan = namespace.faults.decide(recorded, entry.occurrence, elapsed)
    plain = plan is NOTHING and refused is None and _is_plain_search(recorded, request)
    if plain and (known := namespace.search_cache.get(namespace.state, body)) is not None:
        entry.status, entry.done = 200, True
        return web.Response(body=known, content_type=_JSON)
    response = await _Exchange(namespace, entry, plan, upload, refused, request, handler).run()
    if plain and response.status == 200 and isinstance(response, web.Response):
        namespace.search_cache.keep(namespace.state, body, response.body)
    return response


@dataclass(slots=True)
class _Exchange:
    """One request on its way through faults and contract, and what the journal is told of it."""

    namespace: Namespace
    entry: Entry
    plan: Plan
    upload: Upload | None
    refused: EngineError | None
    request: web.Request
    handler: Handler

    async def run(self) -> web.StreamResponse:
        """The answer; the entry stays without a status where the caller hangs up before it."""
        self.entry.faults, self.entry.delay = self.plan.fired, self.plan.delay
        response = await answer(self.plan, self.namespace.clock, self._perform)
        if not isinstance(response, ResetResponse):
            self.entry.status = response.status
            self.entry.code = _code(response)
        return response

    async def _perform(self) -> web.StreamResponse:
        if self.refused is not None:
            return problem_response(self.refused)
        reads = self.plan.stale or self.namespace.state
        CURRENT.set(Call(self.namespace, self.entry.identity, reads, self.upload))
        response = await self.handler(self.request)
        self.entry.done = response.status < 400
        self.namespace.wake_ended()
        return response


def _is_plain_search(recorded: RecordedRequest, request: web.Request) -> bool:
    """Whether the body alone makes the answer."""
    return recorded.operation == "search" and not recorded.query and request.content_type == _JSON


def _route(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else ""


def _key_refusal(namespace: Namespace, request: web.Request) -> EngineError | None:
    if not namespace.api_key or is_probe(request):
        return None
    presented = bearer(request.headers).encode("utf-8", "surrogateescape")
    if hmac.compare_digest(presented, namespace.api_key.encode()):
        return None
    return EngineError("unauthorized", "Send Authorization: Bearer with the engine's KB_API_KEY.")


def _code(response: web.StreamResponse) -> str | None:
    """The code of a problem document."""
    if (
        response.status < 400
        or response.content_type != PROBLEM_JSON
        or not isinstance(response, web.Response)
    ):
        return None
    return msgspec.json.decode(response.body, type=Problem).code if isinstance(response.body, bytes) else None
