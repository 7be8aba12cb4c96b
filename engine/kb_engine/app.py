"""The engine as an application of aiohttp: operations, start and stop.

open the database ─▶ queue interrupted jobs ─▶ sweep the spool ─▶ workers ─▶ serve
                                                                    └─ the model loads meanwhile
SIGTERM ─▶ stop listening ─▶ receive request bodies ─▶ finish requests ─▶ stop the workers ─▶ close
"""

from __future__ import annotations

import asyncio
import logging

from aiohttp import web

from kb_config import tracing
from kb_contracts.access.keys import KeyRing
from kb_contracts.semantics.requests import KeysInUse, RateWindows
from kb_engine.api.auditing import audit_into
from kb_engine.api.documents import DocumentsApi, JobsApi
from kb_engine.api.engine import Engine, Phase, StateApi
from kb_engine.api.search import RaglerApi, SearchApi
from kb_engine.api.versions import VersionsApi
from kb_engine.composition import assemble, audit_log_of, embedder_of, keys_of
from kb_engine.ingest.workers import StoreEventHandler
from kb_engine.settings import EngineSettings
from kb_engine.spans import traced
from kb_engine.store.repository import jobs
from kb_http.direct import DirectCalls
from kb_http.documents import add_documents
from kb_http.mount import build_application, engine_admission, handlers_of

logger = logging.getLogger(__name__)

ENGINE = web.AppKey("engine", Engine)  # the engine's parts, for a process that embeds the application
CALLS = web.AppKey("calls", DirectCalls)  # the operations, for callers in the same process
KEYS = web.AppKey("keys", KeyRing)  # the API keys


async def create_app(settings: EngineSettings) -> web.Application:
    """Return the engine as an application with its database open; the clean-up closes it.

    Raises:
        StartError: one of `kb_engine.start_errors`.
        kb_engine.store.BaseRefused: the database is in use, belongs to another embedder, or is unusable.
    """
    for warning in (*settings.removal_warnings(), *settings.embedder_warnings(), *settings.part_warnings()):
        logger.warning(warning)
    embedder = await asyncio.to_thread(embedder_of, settings)
    keys = await asyncio.to_thread(keys_of, settings)
    audit = audit_log_of(settings)
    engine = await assemble(settings, embedder)
    state = StateApi(engine)
    metrics = None
    if settings.enable_metrics:
        from kb_engine.metrics import EngineMetrics

        metrics = EngineMetrics(state)
        engine.workers.on_end = metrics.job_ended
    apis = (SearchApi, JobsApi, DocumentsApi, VersionsApi, RaglerApi)
    app = build_application(
        handlers_of(state, *(api(engine) for api in apis)),
        api_key=settings.api_key,
        host=settings.host,
        keys=KeysInUse(),
        rates=RateWindows(),
        access_of=keys.access_of,
        audit=None if audit is None else audit_into(audit),
        published=settings.published,
        durations=None if metrics is None else metrics.durations,
        traced=None if tracing.ACTIVE is None else traced,
    )
    add_documents(app)
    app[ENGINE] = engine
    app[KEYS] = keys
    app[CALLS] = calls = DirectCalls(app, settings.api_key)
    if metrics is not None:
        metrics.install(app)
    engine_admission().install(app)

    async def start(_app: web.Application) -> None:
        engine.store.subscribe(StoreEventHandler(engine.workers, engine.waiters))
        again = await engine.store.write(jobs.release)
        swept = await engine.spool.sweep(lambda: engine.store.read(jobs.spooled))
        engine.failed_jobs.start()
        engine.scan.start()
        engine.questions.start()
        engine.workers.start()
        engine.encoder.begin_loading()
        engine.phase = Phase.READY
        mended = {"jobs_queued_again": again, "orphans_swept": swept}
        logger.info("started", extra={name: count for name, count in mended.items() if count})

    async def refuse(_app: web.Application) -> None:
        engine.phase = Phase.STOPPING
        engine.waiters.close()

    async def stop(_app: web.Application) -> None:
        await engine.scan.stop()
        await engine.failed_jobs.stop()
        await engine.workers.stop()
        await engine.questions.stop()
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
