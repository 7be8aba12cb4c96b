"""The engine's API for the command line: one typed method an operation, over httpx."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import IO, Any, TypeVar
from urllib.parse import quote
from uuid import uuid4

import httpx
import msgspec

from kb_cli.exits import CliError, Exit
from kb_contracts.api import models as m
from kb_contracts.api import ragler as r
from kb_contracts.api.errors import PROBLEM_JSON, Problem
from kb_contracts.api.operations import (
    BY_ID,
    IDEMPOTENCY_KEY,
    AnyOperation,
    DocumentQuery,
    DocumentsQuery,
    JobQuery,
    JobsQuery,
    NoteQuery,
)

A = TypeVar("A", bound=msgspec.Struct)

ENDED = frozenset({"completed", "failed", "cancelled"})
WAIT_SECONDS = 20.0
"""How long one request waits for a job to end; then it is asked again."""

_TIMEOUT = httpx.Timeout(60.0, connect=5.0)
_PAUSE_SECONDS = 0.5
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class QueueFull(CliError):
    """Too many jobs wait in the engine; it takes more when some have ended."""


class UnsupportedFormat(CliError):
    """The engine takes no files of this kind."""


@dataclass(frozen=True, slots=True)
class _Call:
    """One request to make. `place` are path parameters."""

    operation: AnyOperation
    place: Mapping[str, object]
    query: m.Request | None = None
    body: m.Request | None = None
    file: tuple[str, IO[bytes]] | None = None
    fields: m.FileFields | None = None


class EngineClient:
    """An engine at `url`. A context manager; every method raises `CliError` and nothing else.

    `user` is whose calls of RAGler's operations are counted against their limits; empty: the credential's.
    """

    def __init__(
        self,
        url: str,
        api_key: str = "",
        *,
        user: str = "",
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._url = url
        if not (api_key.isascii() and api_key.isprintable()):
            raise CliError(Exit.USAGE, "KB_API_KEY takes printable ASCII characters only")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        if user:
            headers[r.USER_ID] = user
        try:
            base = httpx.URL(url)
        except (httpx.InvalidURL, UnicodeError) as error:
            raise CliError(Exit.USAGE, f"KB_ENGINE_URL={url!r}: {error}") from error
        # A proxy of the environment is for the world outside and cannot reach this machine.
        outside = base.host not in _LOOPBACK
        self._http = httpx.Client(
            base_url=base, headers=headers, timeout=_TIMEOUT, trust_env=outside, transport=transport
        )

    def __enter__(self) -> EngineClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def search(self, request: m.SearchRequest) -> m.SearchResponse:
        """Find passages."""
        return self._ask("search", m.SearchResponse, body=request)

    def add_note(self, note: m.NoteRequest) -> m.Job:
        """Take in a text."""
        return self._ask("createJob", m.Job, body=note)

    def add_file(self, filename: str, content: IO[bytes], fields: m.FileFields) -> m.Job:
        """Take in a file, read from `content` as it is sent.

        Raises:
            QueueFull, UnsupportedFormat: and `CliError` for anything else.
        """
        return self._ask("createJob", m.Job, file=(filename, content), fields=fields)

    def job(self, job_id: str, *, wait: float = 0.0) -> m.Job:
        """One job; `wait` seconds at the most for it to end."""
        return self._ask("getJob", m.Job, {"job_id": job_id}, query=JobQuery(wait=wait))

    def ended_job(self, job_id: str, *, clock: Callable[[], float] = time.monotonic) -> m.Job:
        """The job when it has ended, however long that takes."""
        while True:
            asked = clock()
            job = self.job(job_id, wait=WAIT_SECONDS)
            if job.status in ENDED:
                return job
            if clock() - asked < _PAUSE_SECONDS:
                time.sleep(_PAUSE_SECONDS)  # an engine that does not wait as asked is not to be hammered

    def retry_job(self, job_id: str) -> m.Job:
        """Queue a failed job again."""
        return self._ask("retryJob", m.Job, {"job_id": job_id})

    def jobs(self, query: JobsQuery) -> m.JobList:
        """Jobs, newest first."""
        return self._ask("listJobs", m.JobList, query=query)

    def documents(self, query: DocumentsQuery) -> m.DocumentList:
        """Documents, filtered and sorted."""
        return self._ask("listDocuments", m.DocumentList, query=query)

    def document(self, key: int | str, query: DocumentQuery) -> m.DocumentDetail:
        """One document, by number or uid."""
        return self._ask("getDocument", m.DocumentDetail, {"document_id": key}, query=query)

    def patch_note(self, document_id: int, patch: m.NotePatch, query: NoteQuery) -> m.Document | m.Job:
        """Replace a note's text in place; the job that goes on with it where that takes longer than asked."""
        place = {"document_id": document_id}
        response = self._send(_Call(BY_ID["patchNote"], place, query=query, body=patch))
        if response.status_code == HTTPStatus.ACCEPTED:
            return self._read(response, m.Job)
        return self._read(response, m.Document)

    def delete(self, key: int | str) -> m.Removed:
        """Remove one document."""
        return self._ask("deleteDocument", m.Removed, {"document_id": key})

    def collections(self) -> r.CollectionList:
        """All collections, by name."""
        return self._ask("listCollections", r.CollectionList)

    def collection(self, id_: str) -> r.CollectionDetail:
        """One collection."""
        return self._ask("getCollection", r.CollectionDetail, {"collection_id": id_})

    def put_collection(self, id_: str, wanted: r.CollectionRequest) -> r.CollectionDetail:
        """Describe a collection."""
        return self._ask("putCollection", r.CollectionDetail, {"collection_id": id_}, body=wanted)

    def status(self) -> m.Status:
        """What the engine tells of itself."""
        return self._ask("getStatus", m.Status)

    def _ask(
        self, operation: str, answer: type[A], place: Mapping[str, object] | None = None, **parts: Any
    ) -> A:
        return self._read(self._send(_Call(BY_ID[operation], place or {}, **parts)), answer)

    def _read(self, response: httpx.Response, answer: type[A]) -> A:
        if not response.is_success:
            raise self._refused(response)
        try:
            return msgspec.json.decode(response.content, type=answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._no_engine(f"its answer does not fit: {error}") from error

    def _send(self, call: _Call) -> httpx.Response:
        path = call.operation.path.format(
            **{key: quote(str(part), safe="") for key, part in call.place.items()}
        )
        headers = {IDEMPOTENCY_KEY: str(uuid4())} if call.operation.mutates else {}
        try:
            return self._http.request(call.operation.method, path, headers=headers, **_content(call))
        except (httpx.TimeoutException, httpx.TransportError) as error:
            raise CliError(
                Exit.UNREACHABLE,
                f"no engine answers at {self._url} ({str(error) or type(error).__name__}); "
                "start one with `kb up`, or name another with --url or KB_ENGINE_URL",
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise self._no_engine(str(error)) from error

    def _refused(self, response: httpx.Response) -> CliError:
        if not response.headers.get("Content-Type", "").startswith(PROBLEM_JSON):
            return self._no_engine(f"it answers {response.status_code} without a problem document")
        try:
            problem = msgspec.json.decode(response.content, type=Problem)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return self._no_engine(f"its problem document does not fit: {error}")
        return _error(problem)

    def _no_engine(self, why: str) -> CliError:
        return CliError(Exit.FAILED, f"what answers at {self._url} is no engine of this version: {why}")


def _content(call: _Call) -> dict[str, Any]:
    """The arguments for httpx: the query, and a JSON body or a form."""
    parts: dict[str, Any] = {}
    if call.query is not None:
        parts["params"] = _params(call.query)
    if call.body is not None:
        parts["json"] = msgspec.to_builtins(call.body)
    if call.file is not None:
        parts["files"] = {"file": call.file}
        parts["data"] = _params(call.fields or m.FileFields())
    return parts


def _params(query: m.Request) -> dict[str, str]:
    """The members for a query or a form: text as it is, anything else as a JSON text."""
    values: dict[str, Any] = msgspec.to_builtins(query)
    return {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in values.items()
    }


def _error(problem: Problem) -> CliError:
    match problem.code:
        case "queue_full":
            return QueueFull(Exit.FAILED, problem.detail)
        case "unsupported_format":
            return UnsupportedFormat(Exit.FAILED, problem.detail)
        case "unauthorized":
            return CliError(
                Exit.FAILED, "the engine refuses the key; set KB_API_KEY (or --api-key) to its own"
            )
        case code if code.endswith("_not_found"):
            return CliError(Exit.NOT_FOUND, problem.detail)
        case _:
            return CliError(Exit.FAILED, problem.detail)
