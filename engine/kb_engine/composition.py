"""Makes the parts that the settings name, and puts them together. A part that is not used is not imported."""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from datetime import UTC, datetime
from importlib import import_module
from tempfile import TemporaryFile
from types import ModuleType

from kb_config.audit import AuditLog
from kb_config.parts import imported
from kb_config.settings import SettingsError
from kb_contracts.access.keys import KeyRing, KeysDamaged
from kb_contracts.access.local import make_local_token
from kb_engine import start_errors
from kb_engine.address import Address
from kb_engine.api.engine import Engine
from kb_engine.api.reranking import Reranker
from kb_engine.care.scan import Pace, Scan
from kb_engine.disk import NO_INODES, lacks_inodes
from kb_engine.embed.protocol import Embedder
from kb_engine.embed.registry import embedder_from
from kb_engine.encoder import Encoder
from kb_engine.index.port import Index
from kb_engine.ingest.failed_jobs import FailedJobBounds, FailedJobs
from kb_engine.ingest.pipeline import Pipeline
from kb_engine.ingest.workers import JobWaiters, Workers
from kb_engine.parts import index_parts, reranker_part, store_part
from kb_engine.pictures import Pictures
from kb_engine.questions import Questions
from kb_engine.settings import EngineSettings
from kb_engine.spool import FolderSpool, Spool
from kb_engine.store.port import Bounds, EmbedderIdentity
from kb_engine.store.sqlite.opening import filled_by as filled_by_sqlite
from kb_engine.store.sqlite.sqlite_store import open_sqlite
from kb_engine.store.store import Store
from kb_engine.turns import lane_slots
from kb_readers.memory import MemoryBudget
from kb_readers.model import Limits, shares

logger = logging.getLogger(__name__)

_KEPT_UPLOADS = 10  # maximum size of the kept input of failed jobs, in uploads of the maximum size
_IDLE_SECONDS = 10.0  # time without a search after which the scan of the base may work, in seconds


def embedder_of(settings: EngineSettings) -> Embedder:
    """Return the embedder of the settings. Raises StartError. It blocks: it may download a model."""
    try:
        return embedder_from(settings.embedder, settings)
    except ValueError as error:
        raise start_errors.EmbedderUnknown(f"KB_EMBEDDER={settings.embedder!r}: {error}") from error


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
        queued=settings.max_queued_jobs,
        versions=settings.keep_versions,
        version_days=settings.keep_versions_days,
        originals=settings.keep_originals,
        originals_bytes=settings.originals_bytes,
    )
    if (address := settings.address) is None:
        store = await open_sqlite(
            settings.database,
            embedder=embedder,
            bounds=bounds,
            index=_index_from(settings),
            spool=settings.spool_folder,
            unfinished=unfinished,
            search_processes=settings.search_processes,
        )
        spool = FolderSpool(settings.spool_folder)
    else:
        store, spool = await store_module(address).open_base(
            settings, embedder, bounds=bounds, index=_index_from(settings), unfinished=unfinished
        )
    return store, spool


async def filled_by(settings: EngineSettings) -> EmbedderIdentity:
    """Return the embedder that filled the existing database of the settings.

    Raises:
        BaseRefused: it does not exist, no engine has used it, or it cannot be opened.
        StartError: a package is not installed.
    """
    if (address := settings.address) is None:
        return await asyncio.to_thread(filled_by_sqlite, settings.database)
    identity: EmbedderIdentity = await store_module(address).filled_by(address)
    return identity


def store_module(address: Address) -> ModuleType:
    """Return the module `Part.store`, for the base at a PostgreSQL address.
    Raises DriverMissing: its packages are not installed.
    """
    part = store_part()
    assert part is not None, "an address without a store is refused by the settings"
    try:
        return import_module(part.store)
    except ModuleNotFoundError as error:
        raise start_errors.DriverMissing(f"KB_STORE={address}", error.name, part.name) from error


async def assemble(settings: EngineSettings, embedder: Embedder) -> Engine:
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
        FailedJobBounds(settings.keep_failed_seconds, _KEPT_UPLOADS * settings.max_upload_bytes),
    )

    def is_idle() -> bool:
        return time.monotonic() - engine.searched_at >= _IDLE_SECONDS and not workers.is_busy

    scan = Scan(store, encoder, pipeline, settings.scan_position, Pace(settings.scan_days, is_idle))
    questions = Questions(store, keeps_texts=settings.keep_questions)
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    reranker = await asyncio.to_thread(reranker_from, settings)
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
        pictures=Pictures(store, limits, memory),
        questions=questions,
        reranker=reranker,
        started_at=started_at,
    )
    return engine


def keys_of(settings: EngineSettings) -> KeyRing:
    """Return the keys of the key file, of the settings, and of the data folder's owner.
    Raises KeysUnusable: the key file is damaged, or the owner's key cannot be written.
    """
    _prepare_folders(settings)
    try:
        own = make_local_token(settings.folder)
        return KeyRing(settings.keys_file, {"KB_API_KEY": settings.api_key}, local=own)
    except KeysDamaged as error:
        raise start_errors.KeysUnusable(f"KB_KEYS: {error}") from error
    except OSError as error:
        raise start_errors.KeysUnusable(str(error)) from error


def audit_log_of(settings: EngineSettings) -> AuditLog | None:
    try:
        return settings.audit.open(settings.home, "engine")
    except OSError as error:
        raise start_errors.HomeNotWritable(
            f"{error.filename}: {error.strerror}; see KB_AUDIT_FOLDER"
        ) from error


def _prepare_folders(settings: EngineSettings) -> None:
    try:
        files = () if settings.address else (settings.database.parent,)
        for folder in (settings.folder, settings.spool_folder, *files):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with TemporaryFile(dir=folder):  # unnamed, so a crash leaves no file behind
                pass
    except OSError as error:
        if error.errno == errno.ENOSPC and lacks_inodes(settings.folder):
            raise start_errors.HomeNotWritable(f"{settings.folder}: {NO_INODES}") from error
        raise start_errors.HomeNotWritable(
            f"{error.filename or settings.folder}: {error.strerror}; "
            "name a folder that can be written in KB_HOME, and in KB_STORE where that is set"
        ) from error


def _index_from(settings: EngineSettings) -> Index | None:
    """Return the index that keeps its own data, not connected yet; None for the store's own index."""
    if not settings.index:
        return None
    part = index_parts()[settings.index]
    try:
        index: Index = imported(part.index)(settings)
    except ModuleNotFoundError as error:
        raise start_errors.DriverMissing(f"VECTOR_DB_TYPE={settings.index}", error.name, part.name) from error
    return index


def reranker_from(settings: EngineSettings) -> Reranker | None:
    """Return the reranker, not connected yet; None if it is off. A local one may download its model.
    Raises StartError: its model, or a package, is missing.
    """
    part = reranker_part(settings)
    if part is None:
        return None
    try:
        reranker: Reranker = imported(part.reranker)(settings)
    except SettingsError as error:
        raise start_errors.RerankerUnknown(str(error)) from error
    return reranker
