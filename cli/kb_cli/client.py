"""The engine's API for the command line: one typed call for every operation, over httpx."""

from __future__ import annotations

import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import IO, Any, TypeVar
from uuid import uuid4

import httpx
import msgspec

from kb_cli.output import CliError, NotFound, Unreachable, UsageError
from kb_config.shared import addresses
from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_contracts.api import ragler as r
from kb_contracts.api.errors import PROBLEM_JSON, Problem

B = TypeVar("B")
R = TypeVar("R", bound=msgspec.Struct)

WAIT_SECONDS = 20.0
"""Maximum time that one request waits for a job, in seconds; then the request is repeated."""

_TIMEOUT = httpx.Timeout(60.0, connect=5.0)
OPTIONAL_SECONDS = 5.0
"""Maximum time for a connection, and of silence, of a request on which no result depends, in seconds."""
_PAGE = 1_000
_PAUSE_SECONDS = 0.5
_PROGRESS_SECONDS = 1.0
_IDS = {
    "document_id": "a document's ID is its number or its uid; `kb get` lists them",
    "job_id": "a job's ID is its UUID; `kb jobs` lists them",
}
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class QueueFull(CliError):
    """Too many jobs are queued in the engine; it accepts more when some have ended."""


class UnsupportedFormat(CliError):
    """The engine does not support files of this format."""


class EngineClient:
    """An engine at `url`, or the first that answers of several separated by commas.

    A context manager; every method raises only `CliError`. `tls` verifies its certificate; by default httpx's
    trust store does. `user` is the user whose rate limits apply to calls of RAGler's operations; empty: the
    credential's limits. `other_url` is the likely URL of an engine if the MCP server is at `url`.
    """

    def __init__(
        self,
        url: str,
        api_key: str = "",
        *,
        user: str = "",
        transport: httpx.BaseTransport | None = None,
        tls: ssl.SSLContext | None = None,
        other_url: str = "",
    ) -> None:
        self._url = url
        self._other_url = other_url
        if not (api_key.isascii() and api_key.isprintable()):
            raise UsageError("KB_API_KEY takes printable ASCII characters only")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        if user:
            headers[r.USER_ID] = user
        try:
            self._bases = deque(httpx.URL(each) for each in addresses(url))
        except (httpx.InvalidURL, UnicodeError) as error:
            raise UsageError(f"KB_ENGINE_URL={url!r}: {error}") from error
        # A proxy of the environment is for external addresses and cannot reach this machine.
        outside = any(each.host not in _LOOPBACK for each in self._bases)
        self._http = httpx.Client(
            base_url=self._bases[0],
            headers=headers,
            timeout=_TIMEOUT,
            trust_env=outside,
            transport=transport,
            # Loading the system's certificates takes longer than most requests of a command.
            verify=tls or any(each.scheme == "https" for each in self._bases),
        )

    def __enter__(self) -> EngineClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    @contextmanager
    def optional(self) -> Iterator[None]:
        """For requests on which no result depends: wait `OPTIONAL_SECONDS` at most, and ignore failures."""
        self._http.timeout = httpx.Timeout(OPTIONAL_SECONDS)
        try:
            with suppress(CliError):
                yield
        finally:
            self._http.timeout = _TIMEOUT

    def call(
        self,
        operation: ops.Operation[B, R],
        *,
        path: Mapping[str, object] | None = None,
        query: m.Request | None = None,
        body: B | None = None,
    ) -> R:
        """Call any operation of the contract.
        Raises QueueFull: too many jobs are queued; `CliError` for all other failures.
        """
        content: dict[str, Any] = {} if body is None else {"json": msgspec.to_builtins(body)}
        if query is not None:
            content["params"] = ops.to_params(query)
        return self._exchange(operation, path or {}, content)

    def document(self, key: object) -> m.DocumentDetail:
        """Return a document without its chunks, by number or uid. Raises `CliError`."""
        return self.call(ops.GET_DOCUMENT, path={"document_id": key}, query=ops.WITHOUT_CHUNKS)

    def documents(self, **query: Any) -> Iterator[m.Document]:
        """Yield the documents of a `DocumentsQuery`, oldest first: new ones do not shift pages."""
        offset = 0
        while True:
            page = ops.DocumentsQuery(**query, sort_by="id", sort_order="asc", limit=_PAGE, offset=offset)
            found = self.call(ops.LIST_DOCUMENTS, query=page)
            yield from found.documents
            offset += len(found.documents)
            if not found.documents or offset >= found.total:
                return

    def read_original(self, key: object, to: IO[bytes]) -> None:
        """Write the response of `GET_ORIGINAL` to `to` as it arrives. Raises `CliError`."""
        with self._failures():
            target = ops.GET_ORIGINAL.fill_path({"document_id": key})
            request = partial(self._http.build_request, ops.GET_ORIGINAL.method, target)
            with closing(self._sent(request, stream=True)) as response:
                if not response.is_success:
                    response.read()
                    raise self._refused(response)
                for block in response.iter_bytes():
                    to.write(block)

    def send_file(
        self,
        filename: str,
        content: IO[bytes],
        fields: m.FileFields,
        *,
        as_text: bool = False,
        encoding: str = "",
    ) -> m.Job:
        """Call `CREATE_JOB` with a file, read from `content` as it is sent.

        `as_text`: a file of unknown format is text. `encoding`: the label of a text's encoding.
        Raises QueueFull, UnsupportedFormat: and `CliError` for all other failures.
        """
        content_type = "text/plain" if as_text else "application/octet-stream"
        if encoding:
            content_type += f"; charset={encoding}"
        form = {"files": {"file": (filename, content, content_type)}, "data": ops.to_params(fields)}
        return self._exchange(ops.CREATE_JOB, {}, form)

    def wait_for_job(
        self,
        job_id: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_job: Callable[[m.Job], None] | None = None,
    ) -> m.Job:
        """Return the job after its end, without a time limit; `on_job` is called every second until then."""
        wait = WAIT_SECONDS if on_job is None else _PROGRESS_SECONDS
        while True:
            began = clock()
            job = self.call(ops.GET_JOB, path={"job_id": job_id}, query=ops.JobQuery(wait=wait))
            if job.status in m.FINAL_STATUSES:
                return job
            if on_job is not None:
                on_job(job)
            if clock() - began < _PAUSE_SECONDS:
                time.sleep(_PAUSE_SECONDS)  # an engine that does not wait as requested must not be flooded

    def _exchange(
        self, operation: ops.Operation[Any, R], path: Mapping[str, object], content: Mapping[str, Any]
    ) -> R:
        headers = {ops.IDEMPOTENCY_KEY: str(uuid4())} if operation.mutates else {}
        with self._failures():
            target = operation.fill_path(path)
            response = self._sent(
                partial(self._http.build_request, operation.method, target, headers=headers, **content)
            )
        if not response.is_success:
            raise self._refused(response)
        try:
            model = operation.models.get(response.status_code, operation.response_model)
            return msgspec.json.decode(response.content, type=model)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._no_engine(f"its response is invalid: {error}") from error

    def _sent(self, build: Callable[[], httpx.Request], *, stream: bool = False) -> httpx.Response:
        """Send the request to the first engine that accepts a connection; later requests go there, too."""
        left = len(self._bases)
        while True:
            left -= 1
            try:
                return self._http.send(build(), stream=stream)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if not left:
                    raise
                self._bases.rotate(-1)
                self._http.base_url = self._bases[0]

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Convert exceptions of a request to `CliError`."""
        try:
            yield
        except ops.PathStepError as error:
            raise UsageError(str(error)) from error
        except (httpx.TimeoutException, httpx.TransportError) as error:
            raise Unreachable(
                f"no engine answers at {self._url} ({str(error) or type(error).__name__}); "
                "start one with `kb up`, or name another with --url or KB_ENGINE_URL"
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise self._no_engine(str(error)) from error

    def _refused(self, response: httpx.Response) -> CliError:
        if not response.headers.get("Content-Type", "").startswith(PROBLEM_JSON):
            if self._is_mcp_server():
                return UsageError(
                    f"{self._url} is the MCP server, which serves agents; this command asks the engine, "
                    f"probably at {self._other_url} (--url or KB_ENGINE_URL; `kb up` prints it)"
                )
            return self._no_engine(f"it answers {response.status_code} without a problem document")
        try:
            problem = msgspec.json.decode(response.content, type=Problem)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return self._no_engine(f"its problem document is invalid: {error}")
        match problem.code:
            case "queue_full":
                return QueueFull(problem.detail)
            case "unsupported_format":
                return UnsupportedFormat(problem.detail)
            case "unauthorized":
                return CliError(
                    "the engine refuses the key; set KB_API_KEY (or --api-key) to the engine's key"
                )
            case "invalid_parameter" if problem.parameter in _IDS:
                return UsageError(_IDS[problem.parameter])
            case code if code.endswith("_not_found"):
                return NotFound(problem.detail)
            case _:
                return CliError(problem.detail)

    def _is_mcp_server(self) -> bool:
        """True if the root of the address lists MCP endpoints, as kb's server does."""
        try:
            found = self._http.get(self._http.base_url.join("/")).json()
        except (httpx.HTTPError, ValueError):
            return False
        return isinstance(found, dict) and "mcp" in found

    def _no_engine(self, why: str) -> CliError:
        return CliError(f"the service at {self._url} is not an engine of this version: {why}")
