"""How far the request reaches that is being served.

It is set around the handler of every operation and read where the store opens a transaction, so that no
handler can forget it. What the engine does of itself, as its workers do, has no request: it reaches
everything, or what the job says that it does.
"""

from __future__ import annotations

from contextvars import ContextVar

import msgspec

from kb_contracts.access.reach import Reach
from kb_contracts.http.mount import Handler, Incoming

REACH: ContextVar[Reach | None] = ContextVar("reach", default=None)
"""None: every document."""


def within_reach(handler: Handler) -> Handler:
    """The handler, whose transactions see what its caller reaches and nothing else."""

    async def serve(incoming: Incoming) -> msgspec.Struct:
        if incoming.access.reach is None:
            return await handler(incoming)
        before = REACH.set(incoming.access.reach)
        try:
            return await handler(incoming)
        finally:
            REACH.reset(before)

    return serve
