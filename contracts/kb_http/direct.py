"""Calls of an application's operations by a caller in its own process, without HTTP.

They follow the path of a request from its parsing on (`mount.py`): the same conversion, idempotency keys in
use, rates, handlers and problem documents. Steps that concern connections are left out: the key, the
Origin, the route. As over HTTP, a caller that leaves does not stop work that has begun: each call is a task
of its own. Only a caller that leaves while sending a file cancels its call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from aiohttp import web
from multidict import CIMultiDict

from kb_contracts.api.operations import AnyOperation
from kb_http.mount import ANSWERING, failure_response
from kb_http.requests import JSON_BODY_BYTES, Sent, SentFile, body_too_large

_ENDING_SECONDS = 10.0
"""Maximum time that calls may take to end when the application stops, in seconds; the same as for
connections.
"""


class DirectCalls:
    """The operations of `app`, called with the rights of a caller over HTTP with this `api_key`."""

    def __init__(self, app: web.Application, api_key: str = "") -> None:
        self._answering = app[ANSWERING]
        self._authorization = f"Bearer {api_key}" if api_key else ""
        self._calls: set[asyncio.Task[web.Response]] = set()

    def begin(
        self,
        operation: AnyOperation,
        *,
        path: Mapping[str, str],
        query: Mapping[str, str],
        headers: Mapping[str, str],
        json: bytes = b"",
        file: SentFile | None = None,
    ) -> asyncio.Task[web.Response]:
        """Start a call of `operation`; the task returns its response, a problem document if it failed.

        `path`, `query` and `headers` are texts as in a URL, decoded. The body is `json`, or a file. The task
        raises ConnectionError if `file.blocks` does, and no other exception.
        """

        async def read_body() -> bytes | None:
            if len(json) > JSON_BODY_BYTES:
                raise body_too_large()
            return json if file is None else None

        sent = Sent(path, query.items(), CIMultiDict(headers), self._authorization, read_body, file)
        call = asyncio.create_task(self._answer(operation, sent))
        self._calls.add(call)
        call.add_done_callback(self._ended)
        return call

    async def close(self, _app: web.Application) -> None:
        """Wait for calls to end, then cancel the rest; a handler of the application's shutdown."""
        if self._calls:
            _, late = await asyncio.wait(self._calls, timeout=_ENDING_SECONDS)
            for call in late:
                call.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _ended(self, call: asyncio.Task[web.Response]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # retrieved: asyncio reports an exception that no caller awaits

    async def _answer(self, operation: AnyOperation, sent: Sent) -> web.Response:
        try:
            return await self._answering[operation.id](sent)
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001 - every exception of a handler becomes a response
            return failure_response(error, operation.method, operation.path)
