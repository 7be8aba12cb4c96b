"""The engine of a data folder, for a server that a client starts itself: a running one, or a new one.

    call ─▶ the engine that is registered in the folder ─▶ HttpEngine
         └─ not running: start one, which ends a while after its last user, and wait for it
    unreachable ─▶ look again, start again ─▶ repeat the call, with the same idempotency key

Each user of the engine holds a lock (`kb_config.rendezvous`), which ends with its process. The engine is in a
session of its own, so that ending one client does not end the engine of another.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Self, TypeVar, Unpack
from uuid import uuid4

import msgspec

from kb_config.rendezvous import Lock, Rendezvous
from kb_contracts.access.local import local_token
from kb_contracts.api import models as m
from kb_contracts.api.content import FileContent
from kb_contracts.api.operations import Operation
from kb_server.engine_client.client import HttpEngine, longest_wait
from kb_server.engine_client.errors import EngineFault, EngineUnreachable
from kb_server.engine_client.port import Content, FileSource
from kb_server.settings import ServerSettings, engine_tls
from kb_server.waiting import SharedWork

B = TypeVar("B")
R = TypeVar("R", bound=msgspec.Struct)
T = TypeVar("T")

START_SECONDS = 60.0
"""Maximum time for an engine to listen, in seconds: it opens its base first, and may have to migrate it."""

_POLL_SECONDS = 0.05
_GRACE_SECONDS = 5.0
"""Maximum wait for an engine of another process that already holds the base, in seconds."""
_LOG_BYTES = 1 << 20

logger = logging.getLogger(__name__)


class OwnEngine:
    """An `Engine` in the data folder of `settings`. `command` starts one that ends without users.

    A context manager: while it is entered, the engine counts as used.
    """

    def __init__(self, settings: ServerSettings, command: Sequence[str]) -> None:
        self._place = Rendezvous(settings.home / "engine")
        self._command = command
        self._key = settings.engine_api_key
        self._tls = engine_tls(settings.engine_ca)
        self._read_timeout = settings.request_timeout_ms / 1000
        self._use: Lock | None = None
        self._client: HttpEngine | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._log_begins = 0
        """Offset in the log at which the output of the last started process begins."""
        self._finding = SharedWork(self._find)
        self._beginning: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Begin to find or start the engine, while the client lists the tools."""
        self._beginning = asyncio.create_task(self._begin())
        return self

    async def __aexit__(self, *_exception: object) -> None:
        """Release the engine, which other users may still need."""
        if self._beginning is not None:
            self._beginning.cancel()
            await asyncio.wait([self._beginning])
        if self._client is not None:
            await self._client.close()
        if self._use is not None:
            self._use.release()

    @property
    def longest_wait(self) -> float:
        """Maximum time that a response may be held back, in seconds."""
        return longest_wait(self._read_timeout)

    async def call(
        self, operation: Operation[B, R], *, idempotency_key: str | None = None, **content: Unpack[Content[B]]
    ) -> R:
        """Call an operation; see `Engine.call`."""
        key = idempotency_key or str(uuid4())
        return await self._with_engine(lambda engine: engine.call(operation, idempotency_key=key, **content))

    async def send_file(
        self, file: FileSource, fields: m.FileFields, *, idempotency_key: str | None = None
    ) -> m.Job:
        """Send a file; see `Engine.send_file`."""
        key = idempotency_key or str(uuid4())
        return await self._with_engine(lambda engine: engine.send_file(file, fields, idempotency_key=key))

    @asynccontextmanager
    async def original(self, document: m.Document) -> AsyncIterator[FileContent]:
        """Stream the original of a document; see `Engine.original`."""
        engine = await self._found()
        async with engine.original(document) as content:
            yield content

    async def wait_for_job(self, job_id: str, seconds: float) -> m.Job:
        """Wait for a job; see `Engine.wait_for_job`."""
        return await self._with_engine(lambda engine: engine.wait_for_job(job_id, seconds))

    async def unready(self) -> EngineFault | None:
        """Check readiness, after starting an engine if it is not running; see `Engine.unready`."""
        try:
            return await (await self._found()).unready()
        except EngineFault as fault:
            return fault

    async def _with_engine(self, ask: Callable[[HttpEngine], Awaitable[T]]) -> T:
        engine = await self._found()
        try:
            return await ask(engine)
        except EngineUnreachable:
            if self._client is engine:
                self._client = None
                await engine.close()
            return await ask(await self._found())

    async def _begin(self) -> None:
        try:
            await self._found()
        except EngineFault as fault:
            logger.warning(
                "the engine is not available yet", extra={"reason": fault.detail}
            )  # the first call reports it too

    async def _found(self) -> HttpEngine:
        if self._client is None:
            await self._finding.outcome()
        assert self._client is not None, "it was found, or there was a fault"
        return self._client

    async def _find(self) -> None:
        try:
            if self._use is None:
                self._use = await _held(self._place.use)
            url = self._place.url() or await self._started()
        except OSError as error:
            raise self._unreachable(f"its data folder cannot be used: {error}") from error
        key = self._key or local_token(self._place.folder)
        self._client = HttpEngine(url, key, read_timeout=self._read_timeout, tls=self._tls)

    async def _started(self) -> str:
        beginning = await _held(self._place.begin)
        try:
            return await self._start()
        finally:
            beginning.release()

    async def _start(self) -> str:
        """Start an engine and return its URL; if several processes try to start one, the first succeeds."""
        now = asyncio.get_running_loop().time
        ends = now() + START_SECONDS
        if self._process is not None and self._process.poll() is not None:
            self._process = None  # an earlier one, which has ended
        was_killed = False
        while (url := self._place.url()) is None:
            if self._process is None:
                self._process, self._log_begins = _started_process(self._command, self._log_file)
                logger.info("engine started", extra={"pid": self._process.pid})
            status = self._process.poll()
            if status is not None and status < 0 and not was_killed:
                was_killed, self._process = True, None  # killed by a signal: start it once more
                continue
            if status is not None:
                ends = min(ends, now() + _GRACE_SECONDS)
            if now() > ends:
                reason = _last_line(self._log_file, self._log_begins) or _ending(status)
                raise self._unreachable(f"it does not start: {reason}")
            await asyncio.sleep(_POLL_SECONDS)
        return url

    @property
    def _log_file(self) -> Path:
        return self._place.folder / "engine.log"

    def _unreachable(self, why: str) -> EngineUnreachable:
        return EngineUnreachable(why, url=str(self._place.folder))


async def _held(take: Callable[[], Lock | None]) -> Lock:
    while (lock := take()) is None:  # noqa: ASYNC110 - another process lets go of it
        await asyncio.sleep(_POLL_SECONDS)
    return lock


def _started_process(command: Sequence[str], log_file: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start an engine; return its process, and the offset of its output in the log.

    Not asyncio's subprocess, which would end the engine with this process.
    """
    with _log(log_file) as log:
        begins = log.seek(0, os.SEEK_END)
        process = subprocess.Popen(  # noqa: S603 - our own interpreter
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    return process, begins


def _log(path: Path) -> IO[bytes]:
    """Open the log file of an engine; a large one is first renamed to its predecessor."""
    if path.exists() and path.stat().st_size > _LOG_BYTES:
        path.replace(path.with_name(f"{path.name}.1"))
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600))


def _last_line(path: Path, begins: int) -> str:
    """Return the last line of the log after the offset `begins`, or ""."""
    with path.open("rb") as log:
        log.seek(max(begins, log.seek(0, os.SEEK_END) - 2_000))
        lines = log.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")[:500].rstrip(".")


def _ending(status: int | None) -> str:
    """Describe the exit of a process without output; `status` is None if it still runs."""
    if status is None:
        return f"it says nothing for {START_SECONDS:g} s"
    return f"it was killed by signal {-status}" if status < 0 else f"it ended with status {status}"
