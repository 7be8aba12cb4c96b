"""The engine's log of requests."""

from __future__ import annotations

import logging

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger

access = logging.getLogger("kb_engine.access")


class AccessLogger(AbstractAccessLogger):
    """A line a request, at level debug: the route and never its values, which may be tags or keys."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        """Log one answered request; `time` is in seconds."""
        match = request.match_info if isinstance(request, web.Request) else None
        route = match.route.resource.canonical if match and match.route.resource else "unknown"
        access.debug(
            "request",
            extra={
                "method": request.method,
                "route": route,
                "status": response.status,
                "milliseconds": round(time * 1000, 1),
            },
        )

    @property
    def enabled(self) -> bool:
        """Whether anybody reads these lines."""
        return access.isEnabledFor(logging.DEBUG)
