"""What happens to every request: the key, its reading, its carrying out once for each key, its answer."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
from typing import Any

from aiohttp import web

from .database import Database, Row
from .operations import Operations
from .promise import Refused
from .requests import Requests

OPEN = {"getHealth", "getReadiness"}


class Endpoint:
    """Answers requests; `news` is told of every change."""

    def __init__(
        self,
        database: Database,
        operations: Operations,
        requests: Requests,
        news: asyncio.Condition,
        key: str,
    ) -> None:
        self._database, self._operations, self._requests = database, operations, requests
        self._news, self._key = news, key
        self._running: set[str] = set()

    @web.middleware
    async def gate(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Errors as problem documents; the key before all else."""
        try:
            self._require_key(request)
            answer: web.StreamResponse = await handler(request)
        except Refused as refused:
            return _problem(refused)
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods - {"HEAD"}))
            return _problem(Refused("method_not_allowed", f"This path takes {allowed}."), Allow=allowed)
        except web.HTTPNotFound:
            return _problem(Refused("route_not_found", "There is no such path."))
        except web.HTTPRequestEntityTooLarge:
            return _problem(Refused("payload_too_large", "The body is over the limit."))
        return answer

    def _require_key(self, request: web.Request) -> None:
        operation = request.match_info.handler
        if not self._key or getattr(operation, "operation_id", "") in OPEN:
            return
        if any(len(request.headers.getall(name, ())) > 1 for name in ("Authorization", "Origin")):
            raise Refused("unauthorized", "Send Authorization and Origin once.")
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.encode(), self._key.encode()):
            raise Refused("unauthorized", "Send the key as Authorization: Bearer.")

    async def serve(self, request: web.Request, operation: Row) -> web.Response:
        """Read a request, carry it out once for each key, answer."""
        asked = self._requests.parameters(request, operation)
        headers = self._requests.headers(request, operation)
        key = headers.get("Idempotency-Key")
        name = json.dumps([request.headers.get("Authorization"), operation["operationId"], key])
        joined = "202" in operation["responses"] and "200" in operation["responses"]
        # An update's retry joins it; here it is done before the retry has been read.
        if key is not None and name in self._running and not joined:
            raise Refused("in_progress", "This request is still running.", retry_after=1)
        self._running.add(name)
        try:
            asked["version"] = _version(headers.get("If-Match"))
            asked["body"] = await self._requests.body(request, operation)
            return await self._once(operation, asked, name if key is not None else "")
        finally:
            self._running.discard(name)

    async def _once(self, operation: Row, asked: Row, name: str) -> web.Response:
        status = 202 if operation["operationId"] in {"createJob", "retryJob"} else 200
        handler = getattr(self._operations, re.sub("([A-Z])", r"_\1", operation["operationId"]).lower())
        if asyncio.iscoroutinefunction(handler):
            return _answer(await handler(asked), 200)
        wanted = {name: value for name, value in asked.items() if name != "wait"}
        fingerprint = hashlib.sha256(
            json.dumps(wanted, sort_keys=True, default=_without_path).encode()
        ).hexdigest()
        before = self._database.answered(name) if name else None
        if before and before["request"] != fingerprint:
            raise Refused("idempotency_mismatch", "The key belongs to another request.")
        if before:
            return _answer(json.loads(before["body"]), before["status"])
        with self._database.transaction():
            told = handler(asked)
            if name:
                self._database.keep_answer(name, fingerprint, status, json.dumps(told))
        async with self._news:
            self._news.notify_all()
        return _answer(told, status)


def _version(text: str | None) -> int | None:
    return int(text.strip('"')) if text is not None else None


def _without_path(value: object) -> str:
    return type(value).__name__


def _answer(told: Row, status: int) -> web.Response:
    headers = {"ETag": f'"{told["version"]}"'} if "chunk_count" in told else {}
    return web.json_response(told, status=status, headers=headers)


def _problem(refused: Refused, **headers: str) -> web.Response:
    if refused.code == "unauthorized":
        headers["WWW-Authenticate"] = "Bearer"
    if "retry_after" in refused.more:
        headers["Retry-After"] = str(refused.more["retry_after"])
    return web.Response(
        status=refused.status,
        headers=headers,
        content_type="application/problem+json",
        text=json.dumps(refused.document()),
    )
