"""A typed client of the engine API for tests: a response is decoded into its model, or the test fails.

Every request uses the table of operations, so that requests and responses can be counted by operation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from itertools import count
from typing import Any, NoReturn, TypeVar
from urllib.parse import quote
from uuid import uuid4

import httpx
import msgspec
import pytest

from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_contracts.api import ragler as r
from kb_contracts.api.content import OCTETS
from kb_contracts.api.errors import ERRORS, PROBLEM_JSON, Problem
from kb_verify.results import Tally

A = TypeVar("A", bound=msgspec.Struct)
T = TypeVar("T")

JSON = "application/json"

_WAIT_SECONDS = 30
_WAITS = 10
_EXCERPT_CHARS = 500
_UNKNOWN = frozenset({"route_not_found", "method_not_allowed"})
_UUID = "00000000-0000-4000-8000-000000000000"
_ATTEMPTS = 2
_WORDS = 40_000
_WORDS_TO_AWAIT = 3_000
_UNAVAILABLE = frozenset({502, 503, 504})

TOO_FAST = "too fast"
"""The beginning of the reason why a promise on unfinished jobs is not shown."""

_PATHS = [
    (operation, re.compile(re.sub(r"{\w+}", "[^/]+", operation.path)))
    for operation in sorted(ops.OPERATIONS, key=lambda each: len(each.path_parameters))
]


class Connections(httpx.Client):
    """Connections to an engine. A request without a response fails the test, with the request in the message.

    `silent` maps operations with a timed-out request to a message: they are not requested again, since each
    request would take the time-out again. The mapping may be shared.

    Several `urls` name engines of one base, which take turns. As in any client of several engines, a request
    goes on to the next one if an engine is away, and each change has an idempotency key. Operations with a
    rate limit go to the last engine first, because each engine counts by itself.
    """

    def __init__(self, *, urls: Sequence[str], silent: dict[str, str], **options: Any) -> None:
        super().__init__(base_url=urls[0], **options)
        self._hosts = [httpx.URL(url) for url in urls]
        self._turns = count()
        self._silent = silent

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        """Send a request like httpx. Raises AssertionError: there is no response."""
        line = f"{request.method} {request.url.path}"
        operation = self._operation_of(request)
        if operation in self._silent:
            raise AssertionError(f"{line} was not sent: {self._silent[operation]}")
        try:
            if len(self._hosts) == 1:
                return super().send(request, **options)
            return self._send_to_any(request, operation, **options)
        except httpx.TimeoutException as error:
            wait = self.timeout.connect if isinstance(error, httpx.ConnectTimeout) else self.timeout.read
            self._silent[operation] = why = f"{line} gave no answer in {wait:g} s"
            raise AssertionError(why) from error
        except httpx.RequestError as error:
            raise AssertionError(f"{line} gave no answer: {str(error) or type(error).__name__}") from error

    def _send_to_any(self, request: httpx.Request, operation: str, **options: Any) -> httpx.Response:
        """Send a request to one engine after the other; return the response of the first available one."""
        if operation in ops.BY_ID and ops.BY_ID[operation].mutates:
            request.headers.setdefault(ops.IDEMPOTENCY_KEY, f"verify {uuid4()}")
        request.read()  # so that its body can be repeated
        first = -1 if operation in r.LIMITS else next(self._turns) % len(self._hosts)
        untried = self._hosts[first:] + self._hosts[:first]
        while True:
            host = untried.pop(0)
            request.url = request.url.copy_with(scheme=host.scheme, host=host.host, port=host.port)
            request.headers["Host"] = host.netloc.decode()
            try:
                response = super().send(request, **options)
            except (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ConnectTimeout):
                if not untried:
                    raise
            else:
                if not untried or response.status_code not in _UNAVAILABLE:
                    return response

    def _operation_of(self, request: httpx.Request) -> str:
        """Return the id of the operation; for an unknown route, the request's line."""
        path = request.url.raw_path.decode().partition("?")[0]
        path = path.removeprefix(self.base_url.raw_path.decode().rstrip("/"))
        for operation, pattern in _PATHS:
            if request.method == operation.method and pattern.fullmatch(path):
                return operation.id
        return f"{request.method} {path}"


class Client:
    """An engine behind `http`, which has its URL and key. Methods fail the test on an unexpected response."""

    def __init__(self, http: httpx.Client, tally: Tally | None = None) -> None:
        self.http = http
        self.tally = Tally() if tally is None else tally

    def request(self, operation: ops.AnyOperation, *path: object, **request: Any) -> httpx.Response:
        """Return the response to an operation, successful or not.

        `path` are its path parameters in their order, `request` is as in httpx. Each request of one of
        RAGler's operations comes from a new user, unless `headers` name one: rate limits count by user, and
        have a test of their own.
        """
        if operation.surface is ops.ApiSurface.RAGLER:
            request["headers"] = {**fresh_user(), **(request.get("headers") or {})}
        values = dict(zip(operation.path_parameters, path, strict=True))
        target = operation.path.format(**{name: quote(str(value), safe="") for name, value in values.items()})
        response = self.http.request(operation.method, target, **request)
        self.tally.count_response(operation.id, response.status_code)
        return response

    def call(self, operation: ops.Operation[Any, A], *path: object, **request: Any) -> A:
        """Send a request that must succeed, and return the model of its response."""
        return decode(self.request(operation, *path, **request), operation.response_model, operation.status)

    def refused(
        self, code: str, operation: ops.AnyOperation, *path: object, parameter: str = "", **request: Any
    ) -> Problem:
        """Send a request that must fail with `code`, and return its problem document, as `problem` does."""
        return problem(self.request(operation, *path, **request), code, parameter)

    def document(self, key: object, **query: Any) -> m.DocumentDetail:
        """Return a document, by its number or uid."""
        return self.call(ops.GET_DOCUMENT, key, params=query)

    def submit(self, text: str, **body: Any) -> m.Job:
        return self.call(ops.CREATE_JOB, json={"text": text, **body})

    def send(self, name: str, data: bytes, headers: Mapping[str, str] | None = None, **fields: str) -> m.Job:
        return self.call(ops.CREATE_JOB, files={"file": (name, data)}, data=fields, headers=headers)

    def ended(self, job: m.Job) -> m.Job:
        """Return the job after its end."""
        seen = job
        for _ in range(_WAITS):
            seen = self.call(ops.GET_JOB, job.id, params={"wait": _WAIT_SECONDS})
            if seen.status in m.FINAL_STATUSES:
                return seen
        raise AssertionError(f"job {job.id} is {seen.status} after {_WAITS * _WAIT_SECONDS} seconds")

    def completed(self, job: m.Job) -> int:
        """Return the id of the job's document."""
        ended = self.ended(job)
        assert ended.status == "completed", f"the job {ended.status}: {ended.error}"
        assert ended.document_id is not None, "a completed job names no document"
        return ended.document_id

    def note(self, text: str, **body: Any) -> int:
        return self.completed(self.submit(text, **body))

    def stored_note(self, text: str, **body: Any) -> m.DocumentDetail:
        return self.document(self.note(text, **body))

    def file(self, name: str, data: bytes, **fields: str) -> int:
        return self.completed(self.send(name, data, None, **fields))

    @contextmanager
    def adding_jobs(self, number: int) -> Iterator[None]:
        """Check that `number` jobs are accepted in the block."""
        before = self.call(ops.LIST_JOBS).total
        yield
        assert self.call(ops.LIST_JOBS).total == before + number

    @property
    def keeps_originals(self) -> bool:
        """True if the engine's status says that it keeps the files that are sent."""
        return self.call(ops.GET_STATUS).storage.kept_originals_bytes is not msgspec.UNSET

    @property
    def enforces_access(self) -> bool:
        """True if the engine announces that it enforces the access of callers."""
        return "access" in (self.call(ops.GET_STATUS).features or ())

    def original(self, key: object) -> bytes:
        """Return the file that a document was made of."""
        response = self.request(ops.GET_ORIGINAL, key)
        assert response.status_code == HTTPStatus.OK, (
            f"{_request_line(response)} is not a 200: {_excerpt(response)}"
        )
        _check_media_type(response, OCTETS)
        return response.content

    def history(self) -> m.History | None:
        """Return the history of the status, or None if the engine has none."""
        response = self.request(ops.GET_STATUS, params={"history": True})
        status = decode(response, m.Status) if response.status_code == 200 else self.call(ops.GET_STATUS)
        return None if status.history is msgspec.UNSET else status.history

    def listed(self, **query: Any) -> list[int]:
        """Return the ids of a page of documents."""
        return [document.id for document in self.call(ops.LIST_DOCUMENTS, params=query).documents]

    def clear(self, headers: Mapping[str, str] | None = None, *, collections: bool = False) -> m.Removed:
        """Remove every document; with `collections` the descriptions of collections too."""
        params = {"confirm": "true", **({"collections": "true"} if collections else {})}
        return self.call(ops.CLEAR_DOCUMENTS, params=params, headers=headers)

    def patch(
        self, document_id: int, headers: Mapping[str, str] | None = None, **body: Any
    ) -> httpx.Response:
        """Change a note; the response waits for the change up to the maximum of the contract."""
        params = {"wait": ops.MAX_WAIT_SECONDS}
        return self.request(ops.PATCH_NOTE, document_id, params=params, json=body, headers=headers)

    def patched(self, document_id: int, **body: Any) -> m.Document:
        return decode(self.patch(document_id, **body), m.Document)

    def update(self, document_id: int, headers: Mapping[str, str] | None = None, **body: Any) -> m.Job:
        """Return the accepted job that changes a note; skip the test if the change needed no job."""
        response = self.request(ops.PATCH_NOTE, document_id, params={"wait": 0}, json=body, headers=headers)
        if response.status_code == HTTPStatus.OK:
            skip_as_too_fast("the note was changed before it could be seen as a job")
        return decode(response, m.Job, HTTPStatus.ACCEPTED)

    def collections(self) -> dict[str, r.CollectionSummary]:
        return {collection.name: collection for collection in self.call(ops.LIST_COLLECTIONS).collections}

    def put_collection(
        self, id_: str, name: str, headers: Mapping[str, str] | None = None, **body: Any
    ) -> httpx.Response:
        return self.request(ops.PUT_COLLECTION, id_, json={"name": name, **body}, headers=headers)

    def saved_collection(self, id_: str, name: str, **body: Any) -> r.CollectionDetail:
        return decode(self.put_collection(id_, name, **body), r.CollectionDetail)

    def vector(self, query: str, **body: Any) -> r.VectorSearchResponse:
        return self.call(ops.VECTOR_SEARCH, json={"query": query, **body})

    def search(self, query: str, **body: Any) -> m.SearchResponse:
        return self.call(ops.SEARCH, json={"query": query, **body})

    def found(self, query: str, **body: Any) -> list[int]:
        """Return the ids of the documents that a search by words finds, best first."""
        response = self.search(query, **{"mode": "fts", **body})
        return [result.document.id for result in response.results]


def decode(response: httpx.Response, kind: type[A], status: int = 200) -> A:
    """Return the model in a response, which must have the expected status."""
    assert response.status_code == status, (
        f"{_request_line(response)} is not a {status}: {_excerpt(response)}"
    )
    _check_media_type(response, JSON)
    try:
        return msgspec.json.decode(response.content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AssertionError(f"{_request_line(response)} is no {kind.__name__}: {error}") from error


def problem(response: httpx.Response, code: str, parameter: str = "") -> Problem:
    """Return the problem document of a response that must be this error, in the form of the contract, and
    name this parameter, if one is given.
    """
    what, excerpt = _request_line(response), _excerpt(response)
    try:
        body = msgspec.json.decode(response.content, type=Problem)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AssertionError(f"{what} is no problem ({error}): {excerpt}") from error
    assert body.code == code, f"{what} is {body.code}, not {code}: {body.detail}"
    _check_media_type(response, PROBLEM_JSON)
    status = ERRORS[code].status
    assert response.status_code == body.status == status, (
        f"{what} is {response.status_code} and says {body.status}; {code} is {status}: {excerpt}"
    )
    assert body.title, f"{what} has no title: {excerpt}"
    assert body.detail, f"{what} has no detail: {excerpt}"
    assert not parameter or body.parameter == parameter, f"{what} names {body.parameter!r}, not {parameter!r}"
    return body


def fresh_key() -> dict[str, str]:
    return {ops.IDEMPOTENCY_KEY: f"verify {uuid4()}"}


def fresh_user() -> dict[str, str]:
    return {r.USER_ID: f"verify {uuid4()}"}


def together(*calls: Callable[[], T]) -> Sequence[T]:
    """Make the calls at once; return their results in order."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(lambda call: call(), calls))


def _check_media_type(response: httpx.Response, expected: str) -> None:
    media_type = response.headers.get("Content-Type", "").split(";")[0].strip().lower()
    assert media_type == expected, (
        f"{_request_line(response)} has the Content-Type {media_type!r}, not {expected!r}: "
        f"{_excerpt(response)}"
    )


def _request_line(response: httpx.Response) -> str:
    return f"the response to {response.request.method} {response.request.url.path}"


def _excerpt(response: httpx.Response) -> str:
    return f"{response.status_code} {response.text[:_EXCERPT_CHARS]}"


# --- which operations are served -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Served:
    """The operations that an engine serves; `missing` are the ids of unserved operations of RAGler."""

    missing: frozenset[str] = frozenset()

    @property
    def ragler(self) -> bool:
        """True if any of RAGler's operations is served."""
        return len(self.missing) < len(ops.of_surface(ops.ApiSurface.RAGLER))

    @property
    def operations(self) -> tuple[ops.AnyOperation, ...]:
        """The operations to verify: all, if some of RAGler's are served; the missing ones are broken."""
        return ops.OPERATIONS if self.ragler else ops.of_surface(ops.ApiSurface.ENGINE)

    @property
    def why(self) -> str:
        """The reason for not verifying RAGler's operations."""
        return f"the engine does not serve RAGler's operations: {', '.join(sorted(self.missing))}"


def find_served(http: httpx.Client) -> Served:
    """Send each of RAGler's operations a request that changes nothing."""
    missing = set()
    for operation in ops.of_surface(ops.ApiSurface.RAGLER):
        # A body without its members: an engine that serves the operation refuses it for that.
        body: dict[str, object] | None = None if operation.body is None else {}
        path = operation.path.format(collection_id=_UUID)
        response = http.request(operation.method, path, json=body, headers=fresh_user())
        with suppress(msgspec.DecodeError):
            if msgspec.json.decode(response.content, type=Problem).code in _UNKNOWN:
                missing.add(operation.id)
    return Served(frozenset(missing))


# --- jobs that have not ended ----------------------------------------------------------------------


def long_note(number: int, words: int = _WORDS) -> str:
    """Return a note that takes any engine a while; each `number` gives a different one."""
    return " ".join(f"long{number}x{word}" for word in range(words))


def note_to_await(number: int) -> str:
    """Return a note whose job can be waited for: a moment with a fast model, some seconds with a real one."""
    return long_note(number, _WORDS_TO_AWAIT)


def skip_as_too_fast(why: str) -> NoReturn:
    """Skip a test whose job had ended before the next request."""
    pytest.skip(f"{TOO_FAST}: {why}")


def cancelled(kb: Client) -> m.Job:
    """Return a job that was cancelled before it had ended, as in the response to the cancellation."""
    for number in range(_ATTEMPTS):
        response = kb.request(ops.CANCEL_JOB, kb.submit(long_note(number)).id)
        if response.status_code == 200:
            return decode(response, m.Job)
        problem(response, "job_finished")
    skip_as_too_fast(f"each of {_ATTEMPTS} long notes was taken in before it could be cancelled")
