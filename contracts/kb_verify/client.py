"""A typed client of the engine API for tests: what an engine answers is a model, or the test fails.

Everything goes by the table of operations, so that what was asked and answered can be counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import uuid4

import httpx
import msgspec
import pytest

from kb_contracts.api import models as m
from kb_contracts.api import ragler as r
from kb_contracts.api.errors import ERRORS, PROBLEM_JSON, Problem
from kb_contracts.api.operations import BY_ID, IDEMPOTENCY_KEY, MAX_WAIT_SECONDS, ApiSurface
from kb_verify.tally import Tally

A = TypeVar("A", bound=msgspec.Struct)
R = TypeVar("R")

ENDED = frozenset({"completed", "failed", "cancelled"})
JSON = "application/json"

_WAIT_SECONDS = 30
_WAITS = 4
_SHOWN_CHARS = 500


class Client:
    """An engine behind `http`, whose base URL and key are set. Methods fail the test on any other answer."""

    def __init__(self, http: httpx.Client, tally: Tally | None = None) -> None:
        self.http = http
        self.tally = Tally() if tally is None else tally

    def ask(
        self, operation_id: str, place: Mapping[str, object] | None = None, **request: Any
    ) -> httpx.Response:
        """Any operation by its id, `place` its path parameters; `request` as httpx takes it.

        Whoever asks one of RAGler's operations is somebody new, unless `headers` name a user: limits are
        kept by user, and shown by a test of their own.
        """
        operation = BY_ID[operation_id]
        if operation.surface is ApiSurface.RAGLER:
            request["headers"] = {**fresh_user(), **(request.get("headers") or {})}
        path = operation.path.format(
            **{key: quote(str(part), safe="") for key, part in (place or {}).items()}
        )
        response = self.http.request(operation.method, path, **request)
        self.tally.answered(operation_id, response.status_code)
        return response

    # jobs

    def submit(self, text: str, **body: Any) -> m.Job:
        """Submit a note; the job as it was accepted."""
        return answered(self.ask("createJob", json={"text": text, **body}), m.Job, 202)

    def send(self, name: str, data: bytes, headers: Mapping[str, str] | None = None, **fields: str) -> m.Job:
        """Submit a file; the job as it was accepted."""
        response = self.ask("createJob", files={"file": (name, data)}, data=fields, headers=headers)
        return answered(response, m.Job, 202)

    def job(self, job_id: str, wait: float = 0) -> m.Job:
        """One job."""
        return answered(self.ask("getJob", {"job_id": job_id}, params={"wait": wait}), m.Job)

    def ended(self, job: m.Job) -> m.Job:
        """The job after its end."""
        seen = job
        for _ in range(_WAITS):
            seen = self.job(job.id, wait=_WAIT_SECONDS)
            if seen.status in ENDED:
                return seen
        raise AssertionError(f"job {job.id} is {seen.status} after {_WAITS * _WAIT_SECONDS} seconds")

    def completed(self, job: m.Job) -> int:
        """The id of the document that the job made."""
        ended = self.ended(job)
        assert ended.status == "completed", f"the job {ended.status}: {ended.error}"
        assert ended.document_id is not None, "a completed job names no document"
        return ended.document_id

    def jobs(self, **query: Any) -> m.JobList:
        """A page of jobs."""
        return answered(self.ask("listJobs", params=query), m.JobList)

    def cancel(self, job: m.Job) -> httpx.Response:
        """Cancel a job."""
        return self.ask("cancelJob", {"job_id": job.id})

    def retry(self, job_id: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """Queue a failed job again."""
        return self.ask("retryJob", {"job_id": job_id}, headers=headers)

    # documents

    def note(self, text: str, **body: Any) -> int:
        """Take in a note; its document's id."""
        return self.completed(self.submit(text, **body))

    def file(self, name: str, data: bytes, **fields: str) -> int:
        """Take in a file; its document's id."""
        return self.completed(self.send(name, data, None, **fields))

    def document(self, key: int | str, **query: Any) -> m.DocumentDetail:
        """One document."""
        return answered(self.ask("getDocument", {"document_id": key}, params=query), m.DocumentDetail)

    def documents(self, **query: Any) -> m.DocumentList:
        """A page of documents."""
        return answered(self.ask("listDocuments", params=query), m.DocumentList)

    def listed(self, **query: Any) -> list[int]:
        """The ids of a page of documents."""
        return [document.id for document in self.documents(**query).documents]

    def delete(self, key: int | str, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """Remove a document."""
        return self.ask("deleteDocument", {"document_id": key}, headers=headers)

    def clear(self, headers: Mapping[str, str] | None = None, *, collections: bool = False) -> m.Removed:
        """Remove every document; with `collections` what was said of collections too."""
        params = {"confirm": "true", **({"collections": "true"} if collections else {})}
        return answered(self.ask("clearDocuments", params=params, headers=headers), m.Removed)

    def patch(
        self, document_id: int, headers: Mapping[str, str] | None = None, **body: Any
    ) -> httpx.Response:
        """Change a note; the answer waits for that as long as an engine has to."""
        return self._patch(document_id, MAX_WAIT_SECONDS, headers, body)

    def patched(self, document_id: int, **body: Any) -> m.Document:
        """A note after its change."""
        return answered(self.patch(document_id, **body), m.Document)

    def update(self, document_id: int, headers: Mapping[str, str] | None = None, **body: Any) -> m.Job:
        """The job that changes a note, as it was accepted; the test is skipped where none is needed."""
        response = self._patch(document_id, 0, headers, body)
        if response.status_code == HTTPStatus.OK:
            pytest.skip("the note was changed before it could be seen as a job")
        return answered(response, m.Job, HTTPStatus.ACCEPTED)

    def _patch(
        self, document_id: int, wait: float, headers: Mapping[str, str] | None, body: dict[str, Any]
    ) -> httpx.Response:
        place = {"document_id": document_id}
        return self.ask("patchNote", place, params={"wait": wait}, json=body, headers=headers)

    def add_tags(
        self, key: int | str, *tags: str, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Add tags to a document."""
        return self.ask("addTags", {"document_id": key}, json={"tags": list(tags)}, headers=headers)

    def remove_tag(
        self, key: int | str, tag: str, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Take a tag off a document."""
        return self.ask("removeTag", {"document_id": key, "tag": tag}, headers=headers)

    def tags(self, **query: Any) -> m.TagList:
        """A page of tags."""
        return answered(self.ask("listTags", params=query), m.TagList)

    # collections

    def vector(self, query: str, **body: Any) -> r.VectorSearchResponse:
        """The answer of a search by RAGler's operation."""
        return answered(self.ask("vectorSearch", json={"query": query, **body}), r.VectorSearchResponse)

    def collections(self) -> dict[str, r.CollectionSummary]:
        """All collections by name, in their order."""
        listed = answered(self.ask("listCollections"), r.CollectionList).collections
        return {collection.name: collection for collection in listed}

    def collection(self, id_: str) -> r.CollectionDetail:
        """One collection."""
        return answered(self.ask("getCollection", {"collection_id": id_}), r.CollectionDetail)

    def describe(
        self, id_: str, name: str, headers: Mapping[str, str] | None = None, **body: Any
    ) -> httpx.Response:
        """Describe a collection."""
        return self.ask("putCollection", {"collection_id": id_}, json={"name": name, **body}, headers=headers)

    def described(self, id_: str, name: str, **body: Any) -> r.CollectionDetail:
        """A collection after it has been described."""
        return answered(self.describe(id_, name, **body), r.CollectionDetail)

    # looking

    def search(self, query: str, **body: Any) -> m.SearchResponse:
        """The answer of a search."""
        return answered(self.ask("search", json={"query": query, **body}), m.SearchResponse)

    def found(self, query: str, **body: Any) -> list[int]:
        """The ids of the documents that a search by words finds, best first."""
        answer = self.search(query, **{"mode": "fts", **body})
        return [result.document.id for result in answer.results]

    def status(self) -> m.Status:
        """The engine's status."""
        return answered(self.ask("getStatus"), m.Status)


def answered(response: httpx.Response, kind: type[A], status: int = 200) -> A:
    """The model that a response with the expected status carries."""
    assert response.status_code == status, f"{_asked(response)} is not a {status}: {_told(response)}"
    _check_media_type(response, JSON)
    try:
        return msgspec.json.decode(response.content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AssertionError(f"{_asked(response)} is no {kind.__name__}: {error}") from error


def problem(response: httpx.Response, code: str) -> Problem:
    """The problem document of a response that must be this error, in the form the contract gives it."""
    try:
        body = msgspec.json.decode(response.content, type=Problem)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AssertionError(f"{_asked(response)} is no problem ({error}): {_told(response)}") from error
    assert body.code == code, f"{_asked(response)} is {body.code}, not {code}: {body.detail}"
    _check_media_type(response, PROBLEM_JSON)
    assert response.status_code == body.status == ERRORS[code].status, (
        f"{_asked(response)} is {response.status_code} and says {body.status}; "
        f"{code} is {ERRORS[code].status}: {_told(response)}"
    )
    assert body.title, f"{_asked(response)} has no title: {_told(response)}"
    assert body.detail, f"{_asked(response)} has no detail: {_told(response)}"
    return body


def fresh_key() -> dict[str, str]:
    """The header of an idempotency key that nobody has used."""
    return {IDEMPOTENCY_KEY: f"verify {uuid4()}"}


def fresh_user() -> dict[str, str]:
    """The header of a user whom nobody has been."""
    return {r.USER_ID: f"verify {uuid4()}"}


def together(*calls: Callable[[], R]) -> Sequence[R]:
    """Make the calls at once; their results in order."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(lambda call: call(), calls))


def _check_media_type(response: httpx.Response, expected: str) -> None:
    media_type = response.headers.get("Content-Type", "").split(";")[0].strip().lower()
    assert media_type == expected, (
        f"{_asked(response)} has the Content-Type {media_type!r}, not {expected!r}: {_told(response)}"
    )


def _asked(response: httpx.Response) -> str:
    return f"the answer to {response.request.method} {response.request.url.path}"


def _told(response: httpx.Response) -> str:
    return f"{response.status_code} {response.text[:_SHOWN_CHARS]}"
