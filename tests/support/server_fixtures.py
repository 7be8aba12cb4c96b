"""An engine in memory for tests of the server: it keeps the contract, and remembers what it was asked.

It is mounted by the contract's own adapter on a real port, so that what reaches it is what an engine would
get. Tests make it fail, hold it at an operation, and read what it recorded.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import jsonschema
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.api.operations import OPERATIONS, ApiSurface
from kb_contracts.http.mount import Incoming, build_application
from kb_contracts.http.multipart import receive_file
from kb_server.clock import Clock
from kb_server.engine_client.http import HttpEngine
from kb_server.schema import output_schema
from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.tool import Call, ToolError, Toolset
from kb_server.toolsets import build_toolset

MOMENT = "2026-01-02T03:04:05Z"


@dataclass(frozen=True)
class Asked:
    """One request as it arrived. `body` is JSON, or the fields and the file of a multipart body."""

    operation: str
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


class BytesSink:
    """Keeps a file in memory."""

    def __init__(self) -> None:
        self.data = bytearray()

    async def write(self, data: bytes) -> None:
        """Take the next bytes."""
        self.data += data


@dataclass
class FakeEngine:
    """Documents and jobs in dictionaries; a job is completed at once unless `completes` is false.

    Then it is `waiting`, and an update of a note is a job too.
    """

    version: str = "v3.0.0"
    completes: bool = True
    waiting: m.JobStatus = "queued"
    asked: list[Asked] = field(default_factory=list)
    documents: dict[int, m.Document] = field(default_factory=dict)
    jobs: dict[str, m.Job] = field(default_factory=dict)
    found: list[m.SearchResult] = field(default_factory=list)
    weak: bool = False
    matching: int | None = None
    """What a search says that match; None: what was found."""
    files: list[bytes] = field(default_factory=list)
    by_key: dict[str, str] = field(default_factory=dict)
    faults: dict[str, list[Exception]] = field(default_factory=dict)
    gates: dict[str, Callable[[Incoming], Awaitable[None]]] = field(default_factory=dict)

    def of(self, operation: str) -> list[Asked]:
        """The requests of one operation, in order."""
        return [asked for asked in self.asked if asked.operation == operation]

    def mutations(self) -> list[tuple[str, str]]:
        """Method and path of everything but reads, in order."""
        return [(asked.method, asked.path) for asked in self.asked if asked.method != "GET"]

    def fail(self, operation: str, *errors: Exception) -> None:
        """Let the next calls of an operation fail, one with each error."""
        self.faults.setdefault(operation, []).extend(errors)

    def add(self, *tags: str, doc_type: m.DocType = "note", **members: Any) -> m.Document:
        """Put a document in, past all jobs."""
        number = len(self.documents) + 1
        document = m.Document(
            **{
                "id": number,
                "uid": str(uuid4()),
                "title": f"Document {number}",
                "doc_type": doc_type,
                "format": None,
                "filename": None,
                "source_path": None,
                "source_paths": [],
                "size_bytes": 5,
                "sha256": hashlib.sha256(str(number).encode()).hexdigest(),
                "tags": list(tags),
                "metadata": {},
                "status": "searchable",
                "status_reason": None,
                "extraction_method": "note",
                "pages": None,
                "chunk_count": 1,
                "version": 1,
                "created_at": MOMENT,
                "updated_at": MOMENT,
                **members,
            }
        )
        self.documents[document.id] = document
        return document

    def application(self, api_key: str) -> web.Application:
        """The engine's HTTP side."""
        operations = tuple(operation for operation in OPERATIONS if operation.surface is ApiSurface.ENGINE)
        handlers = {
            operation.id: partial(self._serve, getattr(self, _method(operation.id)))
            for operation in operations
        }
        return build_application(handlers, api_key=api_key, operations=operations)

    async def _serve(
        self, handler: Callable[[Incoming], Awaitable[msgspec.Struct]], incoming: Incoming
    ) -> msgspec.Struct:
        await self._record(incoming)
        name = incoming.operation.id
        if name in self.gates:
            await self.gates[name](incoming)
        if self.faults.get(name):
            raise self.faults[name].pop(0)
        return await handler(incoming)

    async def _record(self, incoming: Incoming) -> None:
        http = incoming.http
        body: Any = None
        if http.content_type == "multipart/form-data":
            sink = BytesSink()

            async def opened(_filename: str) -> BytesSink:
                return sink

            received = await receive_file(http, opened, max_bytes=1 << 30)
            body = {**msgspec.to_builtins(received.fields), "filename": received.filename}
            self.files.append(bytes(sink.data))
        elif incoming.body is not None:
            body = json.loads(await http.read())
        self.asked.append(
            Asked(
                operation=incoming.operation.id,
                method=http.method,
                path=http.path,
                query=dict(http.query),
                headers=dict(http.headers),
                body=body,
            )
        )

    def _document(self, incoming: Incoming) -> m.Document:
        key = int(incoming.path["document_id"])
        if key not in self.documents:
            raise EngineError("document_not_found", f"There is no document {key}.")
        return self.documents[key]

    def _changed(self, document: m.Document, **members: Any) -> m.Document:
        changed = msgspec.structs.replace(document, version=document.version + 1, **members)
        self.documents[document.id] = changed
        return changed

    def _matching(self, incoming: Incoming) -> m.Document:
        document = self._document(incoming)
        if incoming.if_match not in (None, document.version):
            raise EngineError(
                "version_conflict", "The document has changed.", current_version=document.version
            )
        return document

    async def _search(self, incoming: Incoming) -> m.SearchResponse:
        return m.SearchResponse(
            results=self.found[: incoming.body.top],
            total=len(self.found) if self.matching is None else self.matching,
            mode=incoming.body.mode or ("fts" if incoming.body.fts_only else "hybrid"),
            took_ms=1.0,
            weak=self.weak,
        )

    async def _create_job(self, incoming: Incoming) -> m.Job:
        known = self.by_key.get(incoming.idempotency_key or "")
        if known is not None:
            return self.jobs[known]
        fields = self.asked[-1].body
        document = self.add(*fields.get("tags", [])) if self.completes else None
        job = self._job(
            kind="file" if "filename" in fields else "note",
            filename=fields.get("filename"),
            tags=fields.get("tags", []),
            document_id=document.id if document else None,
            document_uid=document.uid if document else None,
        )
        self.by_key[incoming.idempotency_key or job.id] = job.id
        return msgspec.structs.replace(job, status="queued", document_id=None, document_uid=None)

    def _job(
        self,
        *,
        kind: m.JobKind,
        tags: list[str],
        filename: str | None = None,
        document_id: int | None = None,
        document_uid: str | None = None,
    ) -> m.Job:
        job = m.Job(
            id=str(uuid4()),
            status="completed" if self.completes else self.waiting,
            kind=kind,
            title="",
            filename=filename,
            tags=tags,
            step="",
            progress=1.0,
            completed_steps=1,
            total_steps=1,
            attempts=1,
            document_id=document_id,
            document_uid=document_uid,
            deduplicated=False,
            error=None,
            created_at=MOMENT,
            started_at=None,
            finished_at=None,
        )
        self.jobs[job.id] = job
        return job

    async def _list_jobs(self, incoming: Incoming) -> m.JobList:
        wanted = incoming.query.status
        jobs = [job for job in self.jobs.values() if wanted in (None, job.status)]
        return m.JobList(
            jobs=jobs[: incoming.query.limit],
            total=len(jobs),
            limit=incoming.query.limit,
            offset=incoming.query.offset,
        )

    async def _get_job(self, incoming: Incoming) -> m.Job:
        job = self.jobs.get(incoming.path["job_id"])
        if job is None:
            raise EngineError("job_not_found", "There is no such job.")
        return job

    async def _cancel_job(self, incoming: Incoming) -> m.Job:
        job = await self._get_job(incoming)
        if job.status == "completed":
            raise EngineError("job_finished", "The job has ended.")
        return msgspec.structs.replace(job, status="cancelled")

    async def _retry_job(self, incoming: Incoming) -> m.Job:
        job = await self._get_job(incoming)
        if not job.retryable:
            raise EngineError("job_not_retryable", "The job has not failed.")
        return msgspec.structs.replace(job, status="queued", retryable=False)

    async def _list_documents(self, incoming: Incoming) -> m.DocumentList:
        wanted = incoming.query.source_path
        documents = [each for each in self.documents.values() if wanted in (None, each.source_path)]
        limit, offset = incoming.query.limit, incoming.query.offset
        page = documents[offset:][:limit]
        return m.DocumentList(documents=page, total=len(documents), limit=limit, offset=offset)

    async def _get_document(self, incoming: Incoming) -> m.DocumentDetail:
        document, query = self._document(incoming), incoming.query
        chunks = [chunk(index, text=f"text {index}") for index in range(document.chunk_count)]
        shown = chunks[query.chunk_offset :][: query.chunk_limit] if query.chunks else []
        return m.DocumentDetail(
            **msgspec.structs.asdict(document),
            chunks=shown,
            chunk_offset=query.chunk_offset,
            chunk_limit=query.chunk_limit,
        )

    async def _delete_document(self, incoming: Incoming) -> m.Removed:
        document = self._document(incoming)
        del self.documents[document.id]
        return m.Removed(documents=1, chunks=document.chunk_count, bytes=document.size_bytes)

    async def _clear_documents(self, incoming: Incoming) -> m.Removed:
        if not incoming.query.confirm:
            raise EngineError("confirmation_required", "Send confirm=true.")
        gone = list(self.documents.values())
        self.documents.clear()
        return m.Removed(
            documents=len(gone),
            chunks=sum(each.chunk_count for each in gone),
            bytes=sum(each.size_bytes for each in gone),
        )

    async def _patch_note(self, incoming: Incoming) -> m.Document | m.Job:
        document, patch = self._document(incoming), incoming.body
        if document.doc_type != "note":
            raise EngineError("not_a_note", "Only notes can be patched.")
        if patch.expected_version not in (None, document.version):
            raise EngineError(
                "version_conflict", "The document has changed.", current_version=document.version
            )
        if not self.completes:
            return self._job(kind="update", tags=document.tags, document_id=document.id)
        return self._changed(document, title=patch.title or document.title, updated_at="2026-02-02T00:00:00Z")

    async def _add_tags(self, incoming: Incoming) -> m.Document:
        document = self._matching(incoming)
        new = [tag for tag in incoming.body.tags if tag not in document.tags]
        return self._changed(document, tags=[*document.tags, *new]) if new else document

    async def _remove_tag(self, incoming: Incoming) -> m.Document:
        document = self._matching(incoming)
        tag = incoming.path["tag"]
        if tag not in document.tags:
            raise EngineError("tag_not_found", "The document does not carry this tag.")
        return self._changed(document, tags=[each for each in document.tags if each != tag])

    async def _list_tags(self, incoming: Incoming) -> m.TagList:
        counts = Counter(tag for document in self.documents.values() for tag in document.tags)
        tags = [m.TagCount(tag=tag, documents=count, chunks=count) for tag, count in sorted(counts.items())]
        return m.TagList(tags=tags, total=len(tags), limit=100, offset=0)

    async def _get_status(self, incoming: Incoming) -> m.Status:
        return m.Status(
            version=self.version,
            model=m.ModelInfo(name="all-MiniLM-L6-v2", dimensions=384, max_tokens=256, loaded=True),
            device=m.DeviceInfo(type="cpu", threads=2),
            documents=m.DocumentCounts(
                total=len(self.documents), searchable=len(self.documents), empty=0, by_type={}
            ),
            chunks=0,
            queue=m.QueueState(queued=0, running=0, completed=len(self.jobs), failed=0, cancelled=0),
            storage=m.StorageInfo(path="kb.db", bytes=1, free_bytes=2, originals_bytes=3),
            issues=[],
            started_at=MOMENT,
            last_updated=None,
        )

    async def _get_health(self, incoming: Incoming) -> m.Health:
        return m.Health(status="ok")

    async def _get_readiness(self, incoming: Incoming) -> m.Health:
        return m.Health(status="ready")


def _method(operation_id: str) -> str:
    return "_" + re.sub("[A-Z]", lambda capital: "_" + capital[0].lower(), operation_id)


def chunk(index: int, **members: Any) -> m.Chunk:
    """A chunk with any members."""
    return m.Chunk(
        **{
            "id": index + 1,
            "uid": str(uuid4()),
            "index": index,
            "text": "some text",
            "page": None,
            "heading": None,
            "start": 0,
            "end": 9,
            **members,
        }
    )


def hit(
    document: m.Document, index: int = 0, *, tags: Sequence[str] | None = None, **members: Any
) -> m.SearchResult:
    """A search result that shows `document`; `members` are its chunk's."""
    summary = {name: getattr(document, name) for name in m.DocumentSummary.__struct_fields__}
    return m.SearchResult(
        chunk=chunk(index, **members),
        score=0.75,
        document=m.DocumentSummary(**summary),
        tags=list(document.tags if tags is None else tags),
    )


@asynccontextmanager
async def serving(engine: FakeEngine, api_key: str = "") -> AsyncIterator[str]:
    """The engine on a port of loopback; its base URL."""
    server = TestServer(engine.application(api_key))
    await server.start_server()
    try:
        yield str(server.make_url("")).rstrip("/")
    finally:
        await server.close()


class ManualClock:
    """A clock that stands until a test moves it; who sleeps is woken when the moment comes."""

    def __init__(self) -> None:
        self.seconds = 1_000.0
        self.asleep: list[tuple[float, asyncio.Event]] = []
        self.slept = asyncio.Event()

    def clock(self) -> Clock:
        """The clock to hand in."""
        return Clock(now=self.now, monotonic=lambda: self.seconds, sleep=self._sleep)

    def now(self) -> datetime:
        """1 January 2026 and the seconds since."""
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds - 1_000.0)

    def advance(self, seconds: float) -> None:
        """Move on, and wake who has slept long enough."""
        self.seconds += seconds
        for wakes_at, event in self.asleep:
            if wakes_at <= self.seconds:
                event.set()

    async def _sleep(self, seconds: float) -> None:
        event = asyncio.Event()
        self.asleep.append((self.seconds + seconds, event))
        self.slept.set()
        await event.wait()


class JumpingClock:
    """A clock on which every sleep is over at once, and counted."""

    def __init__(self) -> None:
        self.seconds = 1_000.0
        self.sleeps: list[float] = []

    def clock(self) -> Clock:
        """The clock to hand in."""
        return Clock(monotonic=lambda: self.seconds, sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.seconds += seconds


class ToolCaller:
    """Calls tools as hosting does: arguments through the model, results against the published schema."""

    def __init__(self, *toolsets: Toolset) -> None:
        self.tools = {tool.name: tool for toolset in toolsets for tool in toolset.tools}
        self.last = Call()

    async def ok(self, name: str, **arguments: Any) -> dict[str, Any]:
        """The structured content of a call that must succeed."""
        tool = self.tools[name]
        self.last = Call(correlation_id="call-1", credential="me")
        result = await tool.run(msgspec.convert(arguments, tool.arguments), self.last)
        content: dict[str, Any] = msgspec.to_builtins(result)
        jsonschema.validate(content, output_schema(tool.result))
        return content

    async def refused(self, name: str, **arguments: Any) -> dict[str, Any]:
        """The error object of a call that must be refused."""
        tool = self.tools[name]
        with pytest.raises(ToolError) as refused:
            await tool.run(msgspec.convert(arguments, tool.arguments), Call(credential="me"))
        return refused.value.payload()


@asynccontextmanager
async def calling(
    engine: FakeEngine, home: Path, *, http_base: str | None = None, **settings: Any
) -> AsyncIterator[ToolCaller]:
    """The tools of `kb` and `kb-extra` in front of `engine`; no wait takes time."""
    async with serving(engine, settings.get("engine_api_key", "")) as url:
        configured = ServerSettings(**{"engine_url": url, "home": home, **settings})
        clock = JumpingClock().clock()
        engine_client = HttpEngine(configured.engine_url, configured.engine_api_key, clock=clock)
        services = Services(configured, http_base=http_base, engine=engine_client)
        async with services:
            yield ToolCaller(build_toolset("kb", services), build_toolset("kb-extra", services))
        await engine_client.close()
