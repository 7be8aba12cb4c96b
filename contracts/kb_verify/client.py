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
from kb_contracts.api.operations import (
    CLEAR_DOCUMENTS,
    CREATE_JOB,
    GET_JOB,
    IDEMPOTENCY_KEY,
    LIST_COLLECTIONS,
    LIST_DOCUMENTS,
    MAX_WAIT_SECONDS,
    PATCH_NOTE,
    PUT_COLLECTION,
    SEARCH,
    VECTOR_SEARCH,
    AnyOperation,
    ApiSurface,
    Operation,
)
from kb_verify.tally import Tally

A = TypeVar("A", bound=msgspec.Struct)
T = TypeVar("T")

JSON = "application/json"

_WAIT_SECONDS = 30
_WAITS = 4
_SHOWN_CHARS = 500


class Client:
    """An engine behind `http`, whose base URL and key are set. Methods fail the test on any other answer."""

    def __init__(self, http: httpx.Client, tally: Tally | None = None) -> None:
        self.http = http
        self.tally = Tally() if tally is None else tally

    def ask(self, operation: AnyOperation, *path: object, **request: Any) -> httpx.Response:
        """The response to an operation, whatever it is. `path` are its path parameters in their order,
        `request` is as httpx takes it.

        Whoever asks one of RAGler's operations is somebody new, unless `headers` name a user: limits are
        kept by user, and a test of their own holds them.
        """
        if operation.surface is ApiSurface.RAGLER:
            request["headers"] = {**fresh_user(), **(request.get("headers") or {})}
        values = dict(zip(operation.path_parameters, path, strict=True))
        target = operation.path.format(**{name: quote(str(value), safe="") for name, value in values.items()})
        response = self.http.request(operation.method, target, **request)
        self.tally.answered(operation.id, response.status_code)
        return response

    def call(self, operation: Operation[Any, A], *path: object, **request: Any) -> A:
        """As `ask`, of an operation that must succeed: the model of its response."""
        return answered(self.ask(operation, *path, **request), operation.response_model, operation.status)

    # What is more than a call, or is said a hundred times.

    def submit(self, text: str, **body: Any) -> m.Job:
        """Submit a note; the job as it was accepted."""
        return self.call(CREATE_JOB, json={"text": text, **body})

    def send(self, name: str, data: bytes, headers: Mapping[str, str] | None = None, **fields: str) -> m.Job:
        """Submit a file; the job as it was accepted."""
        return self.call(CREATE_JOB, files={"file": (name, data)}, data=fields, headers=headers)

    def ended(self, job: m.Job) -> m.Job:
        """The job after its end."""
        seen = job
        for _ in range(_WAITS):
            seen = self.call(GET_JOB, job.id, params={"wait": _WAIT_SECONDS})
            if seen.status in m.FINAL_STATUSES:
                return seen
        raise AssertionError(f"job {job.id} is {seen.status} after {_WAITS * _WAIT_SECONDS} seconds")

    def completed(self, job: m.Job) -> int:
        """The id of the document that the job made."""
        ended = self.ended(job)
        assert ended.status == "completed", f"the job {ended.status}: {ended.error}"
        assert ended.document_id is not None, "a completed job names no document"
        return ended.document_id

    def note(self, text: str, **body: Any) -> int:
        """Take in a note; its document's id."""
        return self.completed(self.submit(text, **body))

    def file(self, name: str, data: bytes, **fields: str) -> int:
        """Take in a file; its document's id."""
        return self.completed(self.send(name, data, None, **fields))

    def listed(self, **query: Any) -> list[int]:
        """The ids of a page of documents."""
        return [document.id for document in self.call(LIST_DOCUMENTS, params=query).documents]

    def clear(self, headers: Mapping[str, str] | None = None, *, collections: bool = False) -> m.Removed:
        """Remove every document; with `collections` their descriptions too."""
        params = {"confirm": "true", **({"collections": "true"} if collections else {})}
        return self.call(CLEAR_DOCUMENTS, params=params, headers=headers)

    def patch(
        self, document_id: int, headers: Mapping[str, str] | None = None, **body: Any
    ) -> httpx.Response:
        """Change a note; the response waits for that as long as an engine has to."""
        params = {"wait": MAX_WAIT_SECONDS}
        return self.ask(PATCH_NOTE, document_id, params=params, json=body, headers=headers)

    def patched(self, document_id: int, **body: Any) -> m.Document:
        """A note after its change."""
        return answered(self.patch(document_id, **body), m.Document)

    def update(self, document_id: int, headers: Mapping[str, str] | None = None, **body: Any) -> m.Job:
        """The job that changes a note, as it was accepted; the test is skipped where none is needed."""
        response = self.ask(PATCH_NOTE, document_id, params={"wait": 0}, json=body, headers=headers)
        if response.status_code == HTTPStatus.OK:
            pytest.skip("the note was changed before it could be seen as a job")
        return answered(response, m.Job, HTTPStatus.ACCEPTED)

    def collections(self) -> dict[str, r.CollectionSummary]:
        """All collections by name, in their order."""
        return {collection.name: collection for collection in self.call(LIST_COLLECTIONS).collections}

    def describe(
        self, id_: str, name: str, headers: Mapping[str, str] | None = None, **body: Any
    ) -> httpx.Response:
        """Describe a collection."""
        return self.ask(PUT_COLLECTION, id_, json={"name": name, **body}, headers=headers)

    def described(self, id_: str, name: str, **body: Any) -> r.CollectionDetail:
        """A collection after it has been described."""
        return answered(self.describe(id_, name, **body), r.CollectionDetail)

    def vector(self, query: str, **body: Any) -> r.VectorSearchResponse:
        """The response to a search by RAGler's operation."""
        return self.call(VECTOR_SEARCH, json={"query": query, **body})

    def search(self, query: str, **body: Any) -> m.SearchResponse:
        """The response to a search."""
        return self.call(SEARCH, json={"query": query, **body})

    def found(self, query: str, **body: Any) -> list[int]:
        """The ids of the documents that a search by words finds, best first."""
        response = self.search(query, **{"mode": "fts", **body})
        return [result.document.id for result in response.results]


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


def together(*calls: Callable[[], T]) -> Sequence[T]:
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
