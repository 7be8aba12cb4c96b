"""kb's MCP server, composed and run; `kb serve` and `python -m kb_server` both call `start`.

log, spans ─▶ one process: services, toolsets, endpoints ─▶ listen until SIGTERM or SIGINT
     └▶ several: `workers.WorkerSupervisor` listens, and each worker runs `serve` on its connections
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import msgspec

from kb_config.logs import configure_logging
from kb_config.parts import imported
from kb_config.rendezvous import Rendezvous
from kb_config.tracing import exporting
from kb_http.certificate import Certificate, CertificateUnusable
from kb_http.direct import DirectCalls
from kb_http.limits import connections_within_descriptors
from kb_server.hosting.http import build_app
from kb_server.hosting.http import serve as serve_app
from kb_server.hosting.toolset_server import mount
from kb_server.observability.auditing import writing
from kb_server.observability.metrics import Metrics, MmapCounters
from kb_server.parts import Site, site_part
from kb_server.processes import Worker
from kb_server.services import Services, checked_keys, http_base, misses_public_url
from kb_server.settings import RAGLER, ServerSettings
from kb_server.toolsets import build_toolset, checked_names, offered
from kb_server.uploads.routes import routes
from kb_server.workers import WorkerSupervisor
from mcp_aiohttp.options import HostingOptions
from mcp_aiohttp.transport.http import CannotListen, PortInUse, Readiness

log = logging.getLogger(__name__)

_ALLOCATIONS = 10_000
"""Number of live new objects that triggers the garbage collector."""


class StartError(Exception):
    """The server cannot start; the message is one line with the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class EngineHere:
    """An engine that runs in the server's process, for the lifetime of the server.

    `running` starts it, yields its base URL and its operations, and stops it; `secrets` are the secrets of
    its settings, which the log removes.
    """

    running: AbstractAsyncContextManager[tuple[str, DirectCalls]]
    secrets: Sequence[str]


def start(
    settings: ServerSettings,
    *,
    on_ready: Callable[[str], object] = str,
    worker: Worker | None = None,
    engine: EngineHere | None = None,
) -> int:
    """Serve over HTTP until SIGTERM or SIGINT; return the exit status. `on_ready` receives the base URL.

    Raises:
        SettingsError: a setting cannot be used.
        StartError: the address cannot be listened on, or the certificate cannot be used.
    """
    with ExitStack() as announced:

        def ready(url: str) -> None:
            if worker is None:  # the process of the workers announces their URL
                _announce(settings.home / "server", url, announced)
            on_ready(url)

        return _run(settings, ready, worker, engine)


def _run(
    settings: ServerSettings,
    on_ready: Callable[[str], object],
    worker: Worker | None,
    engine: EngineHere | None,
) -> int:
    checked_names(settings.toolsets)
    checked_keys(settings)  # here, and not by each of many workers
    part, further = ("server", ()) if engine is None else ("kb", engine.secrets)
    configure_logging(settings.log_level, part=part, secrets=[*settings.secrets, *further])
    if worker is None:  # the parent of workers warns for all
        for warning in settings.removal_warnings():
            log.warning(warning)
    try:
        certificate = (
            Certificate(Path(settings.tls_cert), Path(settings.tls_key)) if settings.tls_cert else None
        )
        if settings.workers > 1 and worker is None:
            return asyncio.run(WorkerSupervisor(settings, on_ready).run())
        with exporting(os.environ, "kb-server"), writing(settings.audit, settings.home):
            try:
                run = import_module("uvloop").run  # an extra
            except ImportError:
                run = asyncio.run
            run(serve(settings, on_ready=on_ready, worker=worker, engine=engine, certificate=certificate))
    except CertificateUnusable as error:
        raise StartError(f"KB_TLS_CERT, KB_TLS_KEY: {error}") from error
    except PortInUse as error:
        raise StartError(f"{error}; set KB_MCP_PORT to another port") from error
    except CannotListen as error:
        raise StartError(f"{error}; check KB_MCP_HOST and KB_MCP_PORT") from error
    return 0


def _announce(folder: Path, url: str, until: ExitStack) -> None:
    """Announce the URL in the data folder for the commands, unless another server of it is announced."""
    with suppress(OSError):  # a server without uploads needs no folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (lock := Rendezvous(folder).announce(url)) is not None:
            until.callback(lock.release)


async def serve(
    settings: ServerSettings,
    *,
    on_ready: Callable[[str], object],
    worker: Worker | None = None,
    engine: EngineHere | None = None,
    certificate: Certificate | None = None,
) -> None:
    """Serve each offered toolset at its own path, and the toolsets of the settings at `/mcp`.

    As a `worker`, serve the connections that its parent hands over. With a `certificate` they are encrypted.
    An `engine` in this process is started first and stopped last, and is RAGler's backend unless another one
    is configured.

    Raises:
        CannotListen: the address cannot be listened on.
        SettingsError: a setting cannot be used.
    """
    most = connections_within_descriptors(settings.max_connections)
    if most < settings.max_connections:
        log.warning(
            "The maximum is %d connections, below KB_MAX_CONNECTIONS: raise the limit on open files "
            "(ulimit -n)",
            most,
        )
        settings = msgspec.structs.replace(settings, max_connections=most)
    default_toolsets = checked_names(settings.toolsets)
    instance, metrics, channel = None, Metrics(), None
    if worker is not None:
        instance, channel = worker.folder.name, worker.channel()
        metrics = Metrics(MmapCounters(worker.folder, worker.slot))
    async with AsyncExitStack() as parts:
        calls = None
        if engine is not None:
            url, calls = await parts.enter_async_context(engine.running)
            backend = settings.ragler_api_url if settings.ragler_api_url_is_set else url
            settings = msgspec.structs.replace(settings, engine_url=url, ragler_api_url=backend)
        services = await parts.enter_async_context(
            Services(settings, http_base=http_base(settings), instance=instance, calls=calls)
        )
        toolsets = [build_toolset(name, services) for name in offered(settings, default_toolsets)]
        part = site_part(settings)
        pages: Site | None = imported(part.site)(services) if part else None
        mounts = mount(toolsets, default_toolsets)
        services.paths = [each.path for each in mounts]
        app = build_app(
            settings,
            mounts,
            routes=[*routes(lambda: services.uploads), *(pages.routes() if pages else ())],
            root=pages.root if pages else None,
            ready=lambda: _readiness(services, default_toolsets),
            metrics=metrics,
            options=HostingOptions(authenticator=services.callers, resource=services.resource),
        )
        _freeze_startup_objects()
        first_check: list[asyncio.Task[None]] = []

        async def warn_if_unready() -> None:
            state = await _readiness(services, default_toolsets)
            if not state.ready:
                log.warning("Not ready: %s", state.reason)

        def bound(_host: str, port: int) -> None:
            services.http_base = http_base(settings, port)
            on_ready(services.http_base)
            if worker is None or worker.slot == 0:  # among several workers, one warns for all
                warn_if_unreachable(settings, services.http_base)
                first_check.append(asyncio.create_task(warn_if_unready()))

        try:
            await serve_app(
                app, settings.host, settings.port, on_bound=bound, channel=channel, certificate=certificate
            )
        finally:
            for task in first_check:
                task.cancel()


def _freeze_startup_objects() -> None:
    """Exempt the existing objects from garbage collection: modules, models and tools are permanent.

    The collector would walk over them again and again. Calls leave few cycles. WebSockets leave cycles, and
    many of them have passed through the younger generations when they end: so the oldest generation, which is
    small without the frozen objects, is collected nearly as often as the younger ones.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS, 10, 1)


async def _readiness(services: Services, default_toolsets: list[str]) -> Readiness:
    """Return the readiness of `/mcp`: RAGler's tools alone need no engine, only their backend."""
    if default_toolsets != [RAGLER]:
        missing = await services.unready()
    elif not services.ragler_is_configured:
        missing = "neither RAGLER_API_URL nor RAGLER_API_KEY is set"
    else:
        missing = (
            "" if await services.ragler.reachable() else "RAGler's backend is not ready at RAGLER_API_URL"
        )
    return Readiness(not missing, missing)


def warn_if_unreachable(settings: ServerSettings, base: str) -> None:
    """Warn if upload URLs begin with an address that other machines cannot reach."""
    if misses_public_url(settings):
        log.warning(
            "Upload URLs begin with %s, which other machines cannot reach: set KB_PUBLIC_URL to the base URL "
            "of this server for agents",
            base,
        )
