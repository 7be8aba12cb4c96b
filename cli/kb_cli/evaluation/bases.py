"""Bases for evaluation: a temporary base of an engine in this process, or a running engine.

Rankings are of documents; the rank of a document is that of its best passage. By the contract a search
returns at most a hundred passages, which are fewer documents than recall@100 needs. In this process the same
handler is called with a larger limit; the ranking of a running engine ends with its hundred passages.
"""

from __future__ import annotations

import argparse
import secrets
import signal
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from tempfile import TemporaryDirectory
from typing import Protocol, TypeVar

from aiohttp import web
from anyio.from_thread import BlockingPortal, start_blocking_portal

from kb_cli.client import EngineClient, QueueFull
from kb_cli.config import base_failures, read
from kb_cli.evaluation.dataset import Dataset, Line, OwnQuestion, Question
from kb_cli.evaluation.metrics import DEPTH
from kb_cli.output import CliError
from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.api.operations import CREATE_JOB, SEARCH
from kb_engine.api.engine import Engine
from kb_engine.api.search import SearchApi
from kb_engine.app import ENGINE, create_app
from kb_engine.settings import EngineSettings

T = TypeVar("T")
Advance = Callable[[], None]

_PASSAGES = 100
"""Maximum number of passages in a search by the contract."""


class Base(Protocol):
    """A filled base to search."""

    client: EngineClient

    def ranking(self, question: str, mode: m.Mode) -> list[str]:
        """Return the ids of the best documents, best first, at most `DEPTH`. Raises CliError."""


class ScratchBase:
    """A base of its own in a temporary folder, behind the engine of this process."""

    def __init__(self, url: str, key: str, engine: Engine, loop: BlockingPortal) -> None:
        self.client = EngineClient(url, key)
        self._api = SearchApi(engine)
        self._loop = loop
        self._ids: dict[int, str] = {}

    def take_in(self, dataset: Dataset, advance: Advance) -> None:
        """Ingest all documents, as notes, and wait until they can be found. Raises CliError: one failed."""
        waiting: deque[tuple[Line, str, str]] = deque()

        def await_oldest() -> None:
            line, document, job_id = waiting.popleft()
            job = self.client.wait_for_job(job_id)
            if job.document_id is None:
                why = job.error.message if job.error else f"the job was {job.status}"
                raise CliError(f"{line.file}, line {line.number}: {why}")
            self._ids[job.document_id] = document
            advance()

        for line, document, note in dataset.notes():
            while True:
                try:
                    waiting.append((line, document, self.client.call(CREATE_JOB, body=note).id))
                    break
                except QueueFull:
                    if not waiting:
                        raise
                    await_oldest()
        while waiting:
            await_oldest()

    def ranking(self, question: str, mode: m.Mode) -> list[str]:
        """Return the ranking as in `Base`, from the required number of passages."""
        top = 2 * DEPTH
        while True:
            request = m.SearchRequest(query=question, mode=mode, top=top)
            results = _result(self._loop, self._api.answer, request).results
            documents = list(dict.fromkeys(self._ids[result.document.id] for result in results))
            if len(documents) >= DEPTH or len(results) < top:
                return documents[:DEPTH]
            top *= 4


class RunningBase:
    """The base of a running engine."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client

    def questions(self, own: Sequence[tuple[Line, OwnQuestion]]) -> list[Question]:
        """Return the questions with the ids of the expected documents of this base.
        Raises CliError: a line names no document, or a document that the base does not have.
        """
        known: dict[str, set[int]] = {}
        for document in self.client.documents():
            names = (str(document.id), document.uid, document.title, document.filename)
            for name in filter(None, (*names, *document.source_paths)):
                known.setdefault(name, set()).add(document.id)
        found = []
        for line, each in own:
            if each.document is None:
                raise line.wrong('it names no document; write {"question": "...", "document": "..."}')
            if not (ids := known.get(str(each.document))):
                wanted = f"no document of the base has the id, uid, source path or title {each.document!r}"
                raise line.wrong(wanted)
            found.append(Question(str(line.number), each.question, {str(id_): 1 for id_ in ids}))
        return found

    def ranking(self, question: str, mode: m.Mode) -> list[str]:
        """Return the ranking as in `Base`, limited to the best hundred passages."""
        request = m.SearchRequest(query=question, mode=mode, top=_PASSAGES)
        results = self.client.call(SEARCH, body=request).results
        return list(dict.fromkeys(str(result.document.id) for result in results))


@contextmanager
def scratch_base(options: argparse.Namespace) -> Iterator[ScratchBase]:
    """Yield an empty base with the embedder of the settings, in a folder that is removed even on SIGTERM.

    Raises:
        CliError: the engine cannot start, or its model cannot be used.
        SettingsError: a setting has an invalid value.
    """
    key = secrets.token_urlsafe()
    with TemporaryDirectory(prefix="kb-eval-") as folder, _sigterm_interrupts(), ExitStack() as running:
        # The base of the settings must not be touched.
        settings = read(EngineSettings, options, home=folder, store="", index="", api_key=key)
        loop = running.enter_context(start_blocking_portal())
        with base_failures():
            url, engine = running.enter_context(loop.wrap_async_context_manager(_serving(settings)))
        base = ScratchBase(url, key, engine, loop)
        # A job would wait for an unavailable model without a time limit.
        _result(loop, engine.encoder.load)
        with base.client:
            yield base


def _result(loop: BlockingPortal, work: Callable[..., Awaitable[T]], *arguments: object) -> T:
    """Return the result of `work` on the engine's loop. Raises CliError."""
    try:
        return loop.call(work, *arguments)
    except EngineError as error:
        raise CliError(error.detail) from error


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@asynccontextmanager
async def _serving(settings: EngineSettings) -> AsyncIterator[tuple[str, Engine]]:
    """Run an engine; yield its URL and its parts."""
    app = await create_app(settings)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", app[ENGINE]
    finally:
        await runner.cleanup()
