"""What comes with a call: what the transport knows of a caller, reduced to what a tool may see."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

from kb_server.observability import tracing
from kb_server.tool import Call, Progress, no_progress
from mcp_aiohttp.protocol.caller import Caller, digest

_MAX_CORRELATION = 128
_MAX_AGENT = 200
_UNPRINTABLE = re.compile(r"[^\x21-\x7e]+")
_TRACEPARENT = re.compile(r"^[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_NO_TRACE = "0" * 32


def correlation_id(meta: Mapping[str, Any] | None, caller: Caller) -> str:
    """The id that follows a call: the caller's own where it sent a usable one, else a new one.

    First `_meta.correlation_id`, then the trace id of a W3C `traceparent` (in `_meta` or a header),
    then the headers `X-Correlation-ID` and `X-Request-ID`. At most 128 printable ASCII characters.
    """
    meta = meta or {}
    trace = _trace(meta.get("traceparent")) or _trace(caller.header("traceparent"))
    candidates = (
        meta.get("correlation_id"),
        trace,
        caller.header("X-Correlation-ID"),
        caller.header("X-Request-ID"),
    )
    for candidate in candidates:
        if isinstance(candidate, str) and (usable := _UNPRINTABLE.sub("", candidate)[:_MAX_CORRELATION]):
            return usable
    return f"{random.getrandbits(128):032x}"  # it tells calls apart, and guards nothing


def new_call(meta: Mapping[str, Any] | None, caller: Caller, progress: Progress = no_progress) -> Call:
    """What comes with a call beside its arguments."""
    call = Call(correlation_id(meta, caller), caller.credential, caller.address, progress)
    call.user = digest(f"{caller.credential} {caller.address}")
    if agent := caller.header("User-Agent"):
        call.log["user_agent"] = agent[:_MAX_AGENT]
    if tracing.ACTIVE is not None:
        call.trace = tracing.trace_of(meta, caller.header("traceparent"), caller.header("tracestate"))
    return call


def agent_of(name: str, version: str) -> str:
    """Who calls, as a `User-Agent` has it, made of what a client says of itself in the protocol."""
    return f"{name}/{version}"[:_MAX_AGENT]


def _trace(traceparent: object) -> str | None:
    match = _TRACEPARENT.match(traceparent) if isinstance(traceparent, str) else None
    return match["trace"] if match and match["trace"] != _NO_TRACE else None
