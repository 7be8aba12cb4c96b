"""Assembly, start and shutdown of the engine.

    open the database ─▶ queue interrupted jobs ─▶ sweep the spool ─▶ workers ─▶ serve
                                                                        └─ the model loads meanwhile
    SIGTERM ─▶ stop listening ─▶ receive request bodies ─▶ finish requests ─▶ stop the workers ─▶ close

Errors at the start; each message is one line:

    StartError
      HomeNotWritable      the data folder cannot be created or written
      EmbedderUnknown      KB_EMBEDDER names no embedder
      KeysUnusable         the key file is damaged, or cannot be read
      DriverMissing        KB_STORE or VECTOR_DB_TYPE needs a package that is not installed
      CannotEncrypt        the certificate is unusable
      CannotListen         the address cannot be used
        PortInUse          the port is in use
"""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger

from kb_config.audit import AuditLog
from kb_config.installing import install_command
from kb_config.rendezvous import Lock, Rendezvous
from kb_config.settings import SettingsError
from kb_contracts.access.keys import KeyRing
from kb_contracts.api.errors import EngineError
from kb_contracts.http.admission import LINGER_SECONDS, stop_listening
from kb_contracts.http.certificate import Certificate, CertificateUnusable
from kb_contracts.http.connections import (
    ConnectionLimits,
    ConnectionTable,
    connection_log,
    connections_within_descriptors,
    is_loopback,
    listen,
)
from kb_contracts.http.direct import DirectCalls
from kb_contracts.http.documents import add_documents
from kb_contracts.http.mount import (
    HEADER_BYTES,
    REQUEST_LINE_BYTES,
    build_application,
    engine_admission,
    handlers_of,
)
from kb_contracts.semantics.requests import KeysInUse, RateWindows
from kb_engine.api.auditing import audit_into
from kb_engine.api.documents import DocumentsApi, JobsApi
from kb_engine.api.engine import Engine, Phase, StateApi
from kb_engine.api.search import RaglerApi, SearchApi
from kb_engine.api.versions import VersionsApi
from kb_engine.care.scan import Pace, Scan
from kb_engine.composition import index_from, reranker_from
from kb_engine.disk import NO_INODES, lacks_inodes
from kb_engine.embed.protocol import Embedder
from kb_engine.embed.registry import embedder_from
from kb_engine.encoder import Encoder
from kb_engine.index.port import Index
from kb_engine.ingest.failed_jobs import FailedJobBounds, FailedJobs
from kb_engine.ingest.pipeline import Pipeline
from kb_engine.ingest.workers import JobWaiters, StoreEventHandler, Workers
from kb_engine.keys import key_ring
from kb_engine.settings import EngineSettings
from kb_engine.spool import FolderSpool, Spool
from kb_engine.store.port import Bounds, EmbedderIdentity
from kb_engine.store.repository import jobs
from kb_engine.store.repository.state import counts
from kb_engine.store.sqlite.opening import filled_by as filled_by_sqlite
from kb_engine.store.sqlite.store import open_sqlite
from kb_engine.store.store import Store
from kb_engine.turns import lane_slots
from kb_readers.memory import MemoryBudget
from kb_readers.model import Limits, shares

logger = logging.getLogger(__name__)
access = logging.getLogger("kb_engine.access")

ENGINE = web.AppKey("engine", Engine)
"""The engine's parts, for a process that embeds the application."""
CALLS = web.AppKey("calls", DirectCalls)
"""The operations, for callers in the same process."""
KEYS = web.AppKey("keys", KeyRing)
"""The API keys."""

_SHUTDOWN_SECONDS = 10.0
_ANNOUNCEMENTS = 20
_IDLE_SECONDS = 10.0
_LEAST_PAUSE, _LOOK_SECONDS = 0.05, 1.0


async def create_app(settings: EngineSettings) -> web.Application:
    """Return the engine as an application with its database open; the clean-up closes it.

    Raises:
        StartError: one of the errors listed above.
        kb_engine.store.BaseRefused: the database is in use, belongs to another embedder, or is unusable.
    """
    for warning in (*settings.embedder_warnings(), *settings.rerank.warnings()):
        logger.warning(warning)
    try:
        embedder = embedder_from(settings.embedder, settings)
    except ValueError as error:
        raise EmbedderUnknown(f"KB_EMBEDDER={settings.embedder!r}: {error}") from error
    keys = await asyncio.to_thread(_keys, settings)
    audit = _audit_log(settings)
    engine = await _assemble(settings, embedder)
    apis = (SearchApi, JobsApi, DocumentsApi, VersionsApi, StateApi, RaglerApi)
    app = build_application(
        handlers_of(*(api(engine) for api in apis)),
        api_key=settings.api_key,
        host=settings.host,
        keys=KeysInUse(),
        rates=RateWindows(),
        access_of=keys.access_of,
        audit=None if audit is None else audit_into(audit),
        published=settings.published,
    )
    add_documents(app)
    app[ENGINE] = engine
    app[KEYS] = keys
    app[CALLS] = calls = DirectCalls(app, settings.api_key)
    engine_admission().install(app)

    async def start(_app: web.Application) -> None:
        engine.store.subscribe(StoreEventHandler(engine.workers, engine.waiters))
        again = await engine.store.write(jobs.release)
        swept = await engine.spool.sweep(lambda: engine.store.read(jobs.spooled))
        engine.failed_jobs.start()
        engine.scan.start()
        engine.workers.start()
        engine.encoder.begin_loading()
        engine.phase = Phase.READY
        logger.info("started", extra={"jobs_queued_again": again, "orphans_swept": swept})

    async def refuse(_app: web.Application) -> None:
        engine.phase = Phase.STOPPING
        engine.waiters.close()

    async def stop(_app: web.Application) -> None:
        await engine.scan.stop()
        await engine.failed_jobs.stop()
        await engine.workers.stop()
        await engine.encoder.close()
        if engine.reranker is not None:
            await engine.reranker.close()
        await engine.store.close()
        if audit is not None:
            audit.close()

    app.on_startup.append(start)
    app.on_shutdown.append(refuse)
    app.on_shutdown.append(calls.close)
    app.on_cleanup.append(stop)
    return app


async def serve(
    settings: EngineSettings, *, on_ready: Callable[[str], None], linger: float | None = None
) -> None:
    """Serve until SIGTERM or SIGINT, then shut down gracefully; `on_ready` is called with the base URL.

    With `linger` the engine also stops after that many seconds without a user (see `Rendezvous`), once it
    has no unfinished jobs.

    Raises:
        StartError, kb_engine.store.BaseRefused: as `create_app`, and `CannotListen`.
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

    Raises:
        StartError, kb_engine.store.BaseRefused: as `create_app`, and `CannotListen`.
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
        async with _listening(runner, settings) as url, _announced(settings, url):
            yield url, app
            logger.info("stopping")
        await stop_listening(runner)
    finally:
        await runner.cleanup()


def _index(settings: EngineSettings) -> Index | None:
    try:
        return index_from(settings)
    except ModuleNotFoundError as error:
        raise DriverMissing(f"VECTOR_DB_TYPE={settings.index}", error.name, settings.index) from error


async def open_store(
    settings: EngineSettings, embedder: EmbedderIdentity, *, unfinished: bool = False
) -> tuple[Store, Spool]:
    """Open the database of the settings, or create it; return it with its spool. The caller closes the store.

    With `unfinished` the target of an interrupted migration may be opened too.

    Raises:
        BaseRefused: the base cannot be opened.
        StartError: its folder cannot be written, or a package is not installed.
    """
    await asyncio.to_thread(_prepare_folders, settings)
    store: Store
    spool: Spool
    bounds = Bounds(
        settings.max_queued_jobs,
        settings.keep_versions,
        settings.keep_versions_days,
        settings.keep_originals,
    )
    if (address := settings.address) is None:
        store = await open_sqlite(
            settings.database,
            embedder=embedder,
            bounds=bounds,
            index=_index(settings),
            spool=settings.spool_folder,
            unfinished=unfinished,
        )
        spool = FolderSpool(settings.spool_folder)
    else:
        try:
            from kb_engine.store.postgres.store import open_postgres
        except ModuleNotFoundError as error:
            raise DriverMissing(f"KB_STORE={address}", error.name, "postgres") from error
        postgres = await open_postgres(
            address,
            embedder=embedder,
            bounds=bounds,
            lease_seconds=settings.lease_seconds,
            exact_below=settings.postgres_exact_below,
            index=_index(settings),
            unfinished=unfinished,
        )
        store, spool = postgres, postgres.spool(settings.spool_folder)
    return store, spool


async def filled_by(settings: EngineSettings) -> EmbedderIdentity:
    """Return the embedder that filled the existing database of the settings.

    Raises:
        BaseRefused: it does not exist, no engine has used it, or it cannot be opened.
        StartError: a package is not installed.
    """
    if (address := settings.address) is None:
        return await asyncio.to_thread(filled_by_sqlite, settings.database)
    try:
        from kb_engine.store.postgres.opening import filled_by as filled_by_postgres
    except ModuleNotFoundError as error:
        raise DriverMissing(f"KB_STORE={address}", error.name, "postgres") from error
    return await filled_by_postgres(address)


async def _assemble(settings: EngineSettings, embedder: Embedder) -> Engine:
    identity = EmbedderIdentity(embedder.name, embedder.dimensions, context=True)
    store, spool = await open_store(settings, identity)
    embedder.expect(store.dimensions)
    if not store.context:
        logger.info("the passages of this base are embedded without titles; run kb reindex to add them")
    waiters = JobWaiters()
    encoder = Encoder(embedder, workers=settings.ingest_workers)
    memory_bytes, ocr_memory_bytes = shares(settings.extract_memory_bytes)
    limits = Limits(
        wall_seconds=settings.extract_timeout,
        ocr_seconds=settings.ocr_timeout,
        ocr_pages=settings.ocr_pages,
        memory_bytes=memory_bytes,
        ocr_memory_bytes=ocr_memory_bytes,
        sandbox=settings.sandbox,
    )
    memory = MemoryBudget(settings.extract_memory_bytes)
    pipeline = Pipeline(encoder, limits, context=store.context, memory=memory)
    workers = Workers(
        store=store,
        spool=spool,
        pipeline=pipeline,
        waiters=waiters,
        lane_slots=lane_slots(settings.ingest_workers),
    )
    failed_jobs = FailedJobs(
        store,
        spool,
        FailedJobBounds(settings.keep_failed_seconds, settings.keep_failed_bytes),
        settings.spool_folder,
    )

    def is_idle() -> bool:
        return time.monotonic() - engine.searched_at >= _IDLE_SECONDS and not workers.is_busy

    scan = Scan(store, encoder, pipeline, settings.scan_position, Pace(settings.scan_days, is_idle))
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    reranker = reranker_from(settings.rerank)
    engine = Engine(
        settings=settings,
        store=store,
        spool=spool,
        encoder=encoder,
        pipeline=pipeline,
        workers=workers,
        waiters=waiters,
        failed_jobs=failed_jobs,
        scan=scan,
        reranker=reranker,
        started_at=started_at,
    )
    return engine


def _keys(settings: EngineSettings) -> KeyRing:
    _prepare_folders(settings)
    try:
        return key_ring(settings)
    except (SettingsError, OSError) as error:
        raise KeysUnusable(str(error)) from error


def _audit_log(settings: EngineSettings) -> AuditLog | None:
    try:
        return settings.audit.open(settings.home, "engine")
    except OSError as error:
        raise HomeNotWritable(f"{error.filename}: {error.strerror}; see KB_AUDIT_FOLDER") from error


def _prepare_folders(settings: EngineSettings) -> None:
    try:
        files = () if settings.address else (settings.database.parent,)
        for folder in (settings.folder, settings.spool_folder, *files):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with TemporaryFile(dir=folder):  # unnamed, so a crash leaves no file behind
                pass
    except OSError as error:
        if error.errno == errno.ENOSPC and lacks_inodes(settings.folder):
            raise HomeNotWritable(f"{settings.folder}: {NO_INODES}") from error
        raise HomeNotWritable(
            f"{error.filename or settings.folder}: {error.strerror}; "
            "name a folder that can be written in KB_HOME, and in KB_STORE where that is set"
        ) from error


@asynccontextmanager
async def _listening(runner: web.AppRunner, settings: EngineSettings) -> AsyncIterator[str]:
    """Listen; yield the base URL. Requests in progress when the block ends are continued.

    There is no limit per client address: the server is the only client, and uses one address.
    """
    make = runner.server
    assert make is not None, "a runner that was set up has a server"
    most = connections_within_descriptors(settings.max_connections)
    limits = ConnectionLimits(most, most, settings.header_timeout)
    certificate = _certificate(settings)
    try:
        listener = await listen(ConnectionTable(make, limits, certificate), settings.host, settings.port)
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(f"{where} is in use; set KB_ENGINE_PORT to another port") from error
        raise CannotListen(f"cannot listen on {where}: {error.strerror}; check KB_ENGINE_HOST") from error
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    try:
        yield f"{'http' if certificate is None else 'https'}://{host}:{listener.address[1]}"
    finally:
        listener.close()


def _certificate(settings: EngineSettings) -> Certificate | None:
    if not settings.tls_cert:
        return None
    try:
        return Certificate(Path(settings.tls_cert), Path(settings.tls_key))
    except CertificateUnusable as error:
        raise CannotEncrypt(f"KB_ENGINE_TLS_CERT, KB_ENGINE_TLS_KEY: {error}") from error


@asynccontextmanager
async def _announced(settings: EngineSettings, url: str) -> AsyncIterator[None]:
    """Publish the base URL in the data folder while the block runs."""
    place = Rendezvous(settings.folder)
    lock: Lock | None = None
    for _ in range(_ANNOUNCEMENTS):  # a process that checks for an engine holds the lock for a moment
        if (lock := place.announce(url)) is not None:
            break
        await asyncio.sleep(_LEAST_PAUSE)
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


class StartError(Exception):
    """The engine cannot start; the message is one line with the reason and advice."""


class HomeNotWritable(StartError):
    """The data folder cannot be created or written."""


class KeysUnusable(StartError):
    """The key file is damaged, or cannot be read."""


class EmbedderUnknown(StartError):
    """`KB_EMBEDDER` names no embedder."""


class DriverMissing(StartError):
    """`KB_STORE` or `VECTOR_DB_TYPE` needs a package that is not installed."""

    def __init__(self, setting: str, package: str | None, extra: str) -> None:
        super().__init__(f"{setting}: needs the package {package}; install it with: {install_command(extra)}")


class CannotEncrypt(StartError):
    """The certificate is unusable."""


class CannotListen(StartError):
    """The server cannot listen on the address."""


class PortInUse(CannotListen):
    """The port is in use."""


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
        """True if the lines are logged at all."""
        return access.isEnabledFor(logging.DEBUG)
