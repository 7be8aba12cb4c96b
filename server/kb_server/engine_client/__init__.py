"""The engine as the server sees it: a typed port, its faults, and one implementation over HTTP.

    tool -> Engine.call -> build_request -> HttpTransport: circuit, attempts, exchange -> decode
                 `----------------- EngineFault, never anything else -----------------'

`HttpEngine` is in `kb_server.engine_client.client` and not gathered here: it imports aiohttp, and a stdio
server starts for every conversation. RAGler's backend is a port of its own, `ragler.Ragler`, with
`ragler_http.HttpRagler` on the same transport (`transport.py`): the same attempts, circuit and faults.
"""

from kb_server.engine_client.errors import (
    EngineBadAnswer,
    EngineBusy,
    EngineFailed,
    EngineFault,
    EngineTimeout,
    EngineTooOld,
    EngineUnauthorized,
    EngineUnreachable,
    RateLimited,
    Refused,
)
from kb_server.engine_client.port import MIN_ENGINE_VERSION, REQUEST_ID, USER, Engine, FileSource

__all__ = [
    "MIN_ENGINE_VERSION",
    "REQUEST_ID",
    "USER",
    "Engine",
    "EngineBadAnswer",
    "EngineBusy",
    "EngineFailed",
    "EngineFault",
    "EngineTimeout",
    "EngineTooOld",
    "EngineUnauthorized",
    "EngineUnreachable",
    "FileSource",
    "RateLimited",
    "Refused",
]
