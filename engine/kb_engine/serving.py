"""An engine that listens: address, announcement in the data folder, signals, and the end of an unused one."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger

from kb_config.rendezvous import Rendezvous
from kb_contracts.api.errors import EngineError
from kb_engine.api.engine import Engine
from kb_engine.app import ENGINE, KEYS, create_app
from kb_engine.settings import EngineSettings
from kb_engine.start_errors import CannotEncrypt, CannotListen, PortInUse
from kb_engine.store.repository.state import counts
from kb_http.certificate import Certificate, CertificateUnusable
from kb_http.connections import LINGER_SECONDS, connection_log, stop_listening
from kb_http.limits import is_loopback
from kb_http.listening import listening
from kb_http.mount import HEADER_BYTES, REQUEST_LINE_BYTES

logger = logging.getLogger(__name__)
access = logging.getLogger("kb_engine.access")

_SHUTDOWN_SECONDS = 10.0
_LEAST_PAUSE, _LOOK_SECONDS = 0.05, 1.0


async def serve(
    settings: EngineSettings, *, on_ready: Callable[[str], None], linger: float | None = None
) -> None:
    """Serve until SIGTERM or SIGINT, then shut down gracefully; `on_ready` is called with the base URL.

    With `linger` the engine also stops after that many seconds without a user (see `Rendezvous`), once it
    has no unfinished jobs.
    Raises StartError, kb_engine.store.BaseRefused: as `create_app`, and `CannotListen`.
    """
    async with _stop_signal() as stop, running(settings) as (url, app):
        on_ready(url)
        if linger is not None:
            place = Rendezvous(settings.folder)
            unused = asyncio.create_task(_until_unused(place, app[ENGINE], linger))
            unused.add_done_callback(lambda _: stop.set())
        await stop.wait()


@asynccontextmanager
async def running(settings: EngineSettings) -> AsyncIterator[tuple[str, web.Application]]:
    """Yield the base URL and the application of a listening engine, announced in its data folder.

    It shuts down gracefully when the block ends.
    Raises StartError, kb_engine.store.BaseRefused: as `create_app`, and `CannotListen`.
    """
    app = await create_app(settings)
    if not app[KEYS].is_needed and not is_loopback(settings.host):
        logger.warning(
            "KB_API_KEY is not set: the base is open to all clients that can connect to this address"
        )
    runner = web.AppRunner(
        app,
        access_log_class=AccessLogger,
        logger=connection_log(),
        shutdown_timeout=_SHUTDOWN_SECONDS,
        lingering_time=LINGER_SECONDS,
        max_line_size=REQUEST_LINE_BYTES,
        max_field_size=HEADER_BYTES,
    )
    try:
        await runner.setup()
        async with _listening(runner, settings) as url:
            with _announced(settings, url):
                yield url, app
                logger.info("stopping")
        await stop_listening(runner)
    finally:
        await runner.cleanup()


@asynccontextmanager
async def _listening(runner: web.AppRunner, settings: EngineSettings) -> AsyncIterator[str]:
    """Listen; yield the base URL. All connections may come from one address, that of the server."""
    certificate = _certificate(settings)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    async with AsyncExitStack() as stack:
        try:
            _, port = await stack.enter_async_context(
                listening(runner, settings.host, settings.port, certificate=certificate)
            )
        except OSError as error:
            where = f"{settings.host}:{settings.port}"
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(f"{where} is in use; set KB_ENGINE_PORT to another port") from error
            raise CannotListen(f"cannot listen on {where}: {error.strerror}; check KB_ENGINE_HOST") from error
        yield f"{'http' if certificate is None else 'https'}://{host}:{port}"


def _certificate(settings: EngineSettings) -> Certificate | None:
    if not settings.tls_cert:
        return None
    try:
        return Certificate(Path(settings.tls_cert), Path(settings.tls_key))
    except CertificateUnusable as error:
        raise CannotEncrypt(f"KB_ENGINE_TLS_CERT, KB_ENGINE_TLS_KEY: {error}") from error


@contextmanager
def _announced(settings: EngineSettings, url: str) -> Iterator[None]:
    """Publish the base URL in the data folder while the block runs."""
    lock = Rendezvous(settings.folder).announce(url)
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


async def _until_unused(place: Rendezvous, engine: Engine, seconds: float) -> None:
    """Return when the engine has been unused for `seconds`, holding the lock that keeps new users waiting."""
    now = asyncio.get_running_loop().time
    used = now()
    while True:
        await asyncio.sleep(max(_LEAST_PAUSE, min(_LOOK_SECONDS, seconds / 4)))
        lock = place.claim()
        if lock is None:
            used = now()
            continue
        if now() - used >= seconds:
            if not await _has_jobs(engine):
                logger.info("the engine is no longer in use")
                return
            used = now()
        lock.release()


async def _has_jobs(engine: Engine) -> bool:
    try:
        queue = (await engine.store.read(counts)).queue
    except EngineError:
        return True  # unknown: assume so, and ask again later
    return bool(queue.queued or queue.running)


@asynccontextmanager
async def _stop_signal() -> AsyncIterator[asyncio.Event]:
    """Yield an event that SIGTERM and SIGINT set; a second signal has its default effect."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    signals = (signal.SIGTERM, signal.SIGINT)

    def hear() -> None:
        stop.set()
        for each in signals:
            loop.remove_signal_handler(each)

    for each in signals:
        loop.add_signal_handler(each, hear)
    try:
        yield stop
    finally:
        for each in signals:
            loop.remove_signal_handler(each)


class AccessLogger(AbstractAccessLogger):
    """One line per request at level debug: the route without its parameters, which may be tags or keys."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        """Log a request; `time` is in seconds."""
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
        """True if access lines are logged, at the level debug."""
        return access.isEnabledFor(logging.DEBUG)
