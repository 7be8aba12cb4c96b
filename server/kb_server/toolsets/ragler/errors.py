"""The faults of RAGler's backend in the words of the toolset `ragler`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from uuid import UUID

from kb_contracts.api.ragler import WINDOW_SECONDS
from kb_server import engine_faults
from kb_server.engine_client.errors import EngineFault, EngineUnreachable, Refused
from kb_server.tool import Call, ToolError

_WORDS: Mapping[str, tuple[str, str]] = {
    "engine_unreachable": (
        "backend_unreachable",
        "RAGler's backend cannot be reached at {url}: {detail}. Check that it runs and that RAGLER_API_URL "
        "is right; then try again.",
    ),
    "engine_timeout": (
        "timeout",
        "RAGler's backend took the request and then kept silent. {detail} Try again.",
    ),
    "rate_limited": (
        "rate_limited",
        "RAGler's backend takes no more calls of this kind for now. Try again in {wait}.",
    ),
    "engine_busy": ("backend_busy", "RAGler's backend is busy: {detail} Try again in {wait}."),
    "engine_unauthorized": (
        "unauthorized",
        "RAGler's backend refused the server's RAGLER_API_KEY; whoever runs the server must set it to one "
        "that the backend knows.",
    ),
    "engine_failed": ("backend_failed", "RAGler's backend failed: {detail} Try again; its log says more."),
    "engine_bad_answer": (
        "backend_bad_answer",
        "What answers at RAGLER_API_URL does not behave like RAGler's backend. {detail} Whoever runs the "
        "server must check that setting, and any proxy between the two.",
    ),
    "collection_not_found": (
        "not_found",
        "There is no collection {collection}. list_collections tells which there are.",
    ),
    "forbidden": ("forbidden", "RAGler's backend does not let this server do that: {detail}"),
    "engine_refused": ("backend_refused", "RAGler's backend refused the request: {detail}"),
}
"""Code and message of each fault; a refusal for another reason keeps the contract's code."""


def backend_call(call: Call, collection_id: UUID | None = None) -> AbstractContextManager[None]:
    """Call the backend for `call`; faults come out as errors of this toolset."""
    return engine_faults.reported(call, partial(_error, collection_id=collection_id))


def _error(fault: EngineFault, *, collection_id: UUID | None) -> ToolError:
    reason = fault.reason if isinstance(fault, Refused) else fault.code
    code, template = _WORDS.get(reason, (reason, _WORDS["engine_refused"][1]))
    wait = fault.retry_after
    if reason == "rate_limited" and wait is None:
        wait = WINDOW_SECONDS  # it did not say; by then the next window has begun
    details: dict[str, object] = {} if wait is None else {"retry_after": math.ceil(wait)}
    if reason == "collection_not_found":
        details["collection_id"] = str(collection_id)
    if isinstance(fault, Refused) and isinstance(parameter := fault.members.get("parameter"), str):
        details["parameter"] = parameter
    words = {
        "detail": fault.detail,
        "url": fault.url if isinstance(fault, EngineUnreachable) else "",
        "wait": "a few seconds" if wait is None else f"{math.ceil(wait)} s",
        "collection": collection_id,
    }
    return ToolError(code, template.format_map(words), **details)
