"""Elicitation: asking the person at the client for approval, in the era of the call.

| Era | Method |
|---|---|
| 2026-07-28 | the result of the call is the question, and the client repeats the call with the answer |
| 2025-06-18, 2025-11-25 | a request to the client in the middle of the call, over stdio and WebSocket |
| the same, over HTTP | not supported: without a session the client's capabilities are unknown |

A question is recognised by its text when the call is repeated: a reply to another text does not count, and
the question is put again. The client speaks for the person in either era, so nothing has to be signed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

log = logging.getLogger(__name__)

ANSWER_SECONDS = 300.0
"""Maximum time that a call waits for a person's answer, in seconds."""

Answer = Literal["accept", "decline", "cancel", "none"]
"""`cancel`: the question was closed without a choice; `none`: the client gave no usable answer."""

_NOTHING_TO_FILL_IN: dict[str, Any] = {"type": "object", "properties": {}}


class InputRequired(Exception):
    """The call is to be answered with `result`; the client repeats it with the answers to its requests."""

    def __init__(self, requests: types.InputRequests) -> None:
        super().__init__("the client must ask first")
        self.result = types.InputRequiredResult(input_requests=requests)


@dataclass(frozen=True, slots=True)
class Person:
    """The person at the client of one call."""

    session: ServerSession
    request_id: types.RequestId | None
    is_modern: bool
    given: Mapping[str, Any]
    """The answers sent by the client, by question."""

    @classmethod
    def of(
        cls, context: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
    ) -> Person | None:
        """Return the person at the client of this call, or None if the client did not declare elicitation."""
        session = context.session
        modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
        if not _asks_by_form(session.client_capabilities) or not (modern or session.can_send_request):
            return None
        return cls(session, context.request_id, modern, params.input_responses or {})

    async def answer(self, question: str) -> Answer:
        """Return the person's answer to `question`, which describes the intended action.
        Raises InputRequired: the client has to ask first; let it out of the call.
        """
        form = types.ElicitRequestFormParams(message=question, requested_schema=_NOTHING_TO_FILL_IN)
        request = types.ElicitRequest(params=form)
        if not self.is_modern:
            return await self._answer_now(request)
        key = f"approval-{sha256(question.encode()).hexdigest()[:16]}"
        given = self.given.get(key)
        if not isinstance(given, types.ElicitResult):
            raise InputRequired({key: request})
        return given.action

    async def _answer_now(self, request: types.ElicitRequest) -> Answer:
        way = ServerMessageMetadata(related_request_id=self.request_id)
        try:
            found = await self.session.send_request(request, types.ElicitResult, ANSWER_SECONDS, way)
        except (MCPError, ValidationError) as failed:
            log.info("The client did not answer an elicitation", extra={"reason": type(failed).__name__})
            return "none"
        return found.action


def _asks_by_form(capabilities: types.ClientCapabilities | None) -> bool:
    """True if the client supports forms; an empty capability means forms, as before modes were introduced."""
    asks = capabilities.elicitation if capabilities is not None else None
    return asks is not None and (asks.form is not None or asks.url is None)
