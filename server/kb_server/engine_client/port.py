"""The server's interface of the engine: one typed call for every operation, and the composite operations."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Generic, Protocol, TypedDict, TypeVar, Unpack

import msgspec

from kb_contracts.api import models as m
from kb_contracts.api.content import FileContent
from kb_contracts.api.operations import GET_DOCUMENT, WITHOUT_CHUNKS, DocumentQuery, Operation
from kb_server.engine_client.errors import EngineFault, EngineTooOld

B = TypeVar("B")
R = TypeVar("R", bound=msgspec.Struct)

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""The correlation id of the call being served; sent to the engine as `X-Request-ID`.

A context variable, since it belongs to the call and not to any one operation.
"""

USER: ContextVar[str] = ContextVar("user", default="")
"""The user of the call; sent to the engine as `X-User-ID` for fair scheduling of callers."""

TRACE: ContextVar[Mapping[str, str] | None] = ContextVar("trace", default=None)
"""The W3C trace context of the call, as headers; None if tracing is off."""


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file to send. `blocks` opens it again for every attempt and yields exactly `size` bytes in all."""

    filename: str
    size: int
    blocks: Callable[[], AsyncIterator[bytes]]


class Content(TypedDict, Generic[B], total=False):
    """The content of a call: path parameters by name, query, body, expected version of the document."""

    path: Mapping[str, object]
    query: m.Request
    body: B
    if_match: int | None


class Engine(Protocol):
    """The engine API.

    Raises (all methods but `unready`): `EngineFault`, see the tree in `errors`.

    Every mutation is sent with an idempotency key, a new one if the caller gives no key.
    """

    @property
    def longest_wait(self) -> float:
        """Seconds that a response may be held back before the engine counts as silent."""

    async def call(
        self, operation: Operation[B, R], *, idempotency_key: str | None = None, **content: Unpack[Content[B]]
    ) -> R:
        """Call any operation of the contract. `GET_STATUS` also works with an engine that is too old."""

    async def send_file(
        self, file: FileSource, fields: m.FileFields, *, idempotency_key: str | None = None
    ) -> m.Job:
        """`CREATE_JOB` with a file, streamed; there is no bound on the whole time, only on silence."""

    def original(self, document: m.Document) -> AbstractAsyncContextManager[FileContent]:
        """Stream `GET_ORIGINAL`; the silence time-out applies to each block, and buffering is bounded."""

    async def wait_for_job(self, job_id: str, seconds: float) -> m.Job:
        """Return the job when it has ended, or its state after `seconds`."""

    async def unready(self) -> EngineFault | None:
        """Return the reason why the engine cannot serve this server, or None; asked once."""


async def read_document(
    engine: Engine, key: object, query: DocumentQuery = WITHOUT_CHUNKS
) -> m.DocumentDetail:
    """Return the document of this number or uid, by default without its text. Raises EngineFault."""
    return await engine.call(GET_DOCUMENT, path={"document_id": key}, query=query)


MIN_ENGINE_VERSION = "v3.0.0"
"""The oldest supported version of the engine's API."""

_VERSION = re.compile(r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(?![\w.])")


def check_version(version: str) -> None:
    """Refuse an engine that is older than `MIN_ENGINE_VERSION`; a pre-release counts as its release.
    Raises EngineTooOld: names both versions; also where `version` is no version.
    """
    parsed = _parse(version)
    if parsed is None or parsed < (_parse(MIN_ENGINE_VERSION) or ()):
        raise EngineTooOld(
            f"The engine is version {version[:40]!r}; {MIN_ENGINE_VERSION} or later is needed."
        )


def _parse(version: str) -> tuple[int, int, int] | None:
    match = _VERSION.match(version.strip())
    if match is None:
        return None
    major, minor, patch = match.groups(default="0")
    return int(major), int(minor), int(patch)
