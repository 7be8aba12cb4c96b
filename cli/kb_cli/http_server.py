"""The MCP server over HTTP, put together from its parts."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Sequence

import msgspec

from kb_cli.worker import Worker
from kb_contracts.http.connection_limits import connections_within_descriptors
from kb_server.hosting.http import build_app
from kb_server.hosting.mounts import mount
from kb_server.hosting.serve import serve
from kb_server.observability.cells import SharedCells
from kb_server.observability.metrics import Metrics
from kb_server.services import Services, http_base, misses_public_url
from kb_server.settings import RAGLER, ServerSettings
from kb_server.toolsets import build_toolset, offered
from kb_server.uploads.routes import routes
from mcp_aiohttp.transport.http import Readiness

log = logging.getLogger(__name__)

_ALLOCATIONS = 10_000
"""Objects made and not yet freed that set off the garbage collector."""


async def run(
    settings: ServerSettings,
    shown: Sequence[str],
    *,
    on_ready: Callable[[str], None],
    worker: Worker | None = None,
) -> None:
    """Serve each offered toolset at its own path and `shown` at `/mcp`; `on_ready` learns the base URL.

    As a `worker`, serve the connections that its parent hands over.

    Raises:
        CannotListen: the address cannot be listened on.
        SettingsError: a setting cannot be used.
    """
    most = connections_within_descriptors(settings.max_connections)
    if most < settings.max_connections:
        log.warning(
            "%d connections may be open, fewer than KB_MAX_CONNECTIONS: raise the limit on open files "
            "(ulimit -n)",
            most,
        )
        settings = msgspec.structs.replace(settings, max_connections=most)
    instance, metrics, handed = None, Metrics(), None
    if worker is not None:
        instance, handed = worker.folder.name, worker.channel()
        metrics = Metrics(SharedCells(worker.folder, worker.slot))
    async with Services(settings, http_base=http_base(settings), instance=instance) as services:
        toolsets = [build_toolset(name, services) for name in offered(settings, shown)]
        app = build_app(
            settings,
            mount(toolsets, shown),
            routes=routes(lambda: services.uploads),
            ready=lambda: _readiness(services, shown),
            metrics=metrics,
        )

        _keep_what_stays()
        first_look: list[asyncio.Task[None]] = []

        def bound(_host: str, port: int) -> None:
            services.http_base = http_base(settings, port)
            on_ready(services.http_base)
            if worker is None or worker.slot == 0:  # one of several says it for all
                _warn_if_unreachable(settings, services.http_base)
                first_look.append(asyncio.create_task(_warn_if_unready(services, shown)))

        try:
            await serve(app, settings.host, settings.port, on_bound=bound, handed=handed)
        finally:
            for task in first_look:
                task.cancel()


def _keep_what_stays() -> None:
    """Spare the garbage collector what is there now: modules, models and tools live as long as the server.

    It would walk over them again and again. Calls leave no cycles worth looking for often. WebSockets do,
    of which many have been through the younger generations when they end: so the oldest, which is small
    without what stays, is looked through nearly as often as these.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS, 10, 1)


async def _readiness(services: Services, shown: Sequence[str]) -> Readiness:
    """Whether what `/mcp` shows can be used: RAGler's tools alone need no engine but their backend."""
    if list(shown) != [RAGLER]:
        missing = await services.unready()
    elif not services.ragler_is_configured:
        missing = "neither RAGLER_API_URL nor RAGLER_API_KEY is set"
    else:
        missing = (
            "" if await services.ragler.reachable() else "RAGler's backend is not ready at RAGLER_API_URL"
        )
    return Readiness(not missing, missing)


async def _warn_if_unready(services: Services, shown: Sequence[str]) -> None:
    state = await _readiness(services, shown)
    if not state.ready:
        log.warning("Not ready: %s", state.reason)


def _warn_if_unreachable(settings: ServerSettings, base: str) -> None:
    if misses_public_url(settings):
        log.warning(
            "Upload URLs begin with %s and reach nobody on another machine: set KB_PUBLIC_URL to the base by "
            "which agents reach this server",
            base,
        )
