"""A state on a manual clock, and a running simulator, with short names for frequent operations."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from kb_contracts.api import models as m
from kb_contracts.semantics.requests import Idempotency
from kb_readers.model import Extraction
from kb_readers.readers import format_of
from kb_simulator.determinism import Clock, ClockMode, Seeded
from kb_simulator.engine import submissions
from kb_simulator.engine.search import search
from kb_simulator.engine.state import State
from kb_simulator.harness.app import Simulator
from kb_simulator.harness.faults import AnyEffect, Fault, When
from kb_simulator.harness.journal import Match
from kb_simulator.harness.namespaces import DEFAULT, Namespace
from kb_simulator.settings import SimulatorSettings
from tests.support.eventually import eventually_async
from tests.support.patience import ANSWER_SECONDS


class Base:
    """A state, its clock, and methods that add notes and files."""

    def __init__(self, seed: int = 7) -> None:
        self.clock = Clock(ClockMode.MANUAL)
        self.state = State(Seeded(seed), self.clock.microseconds)
        self._numbers = itertools.count()

    def submit(self, text: str, **fields: Any) -> m.Job:
        request = m.NoteRequest(text=text, **fields)
        return self.state.accept(submissions.note(f"request-{next(self._numbers)}", request))

    def update(self, document_id: int, retry: Idempotency | None = None, **patch: Any) -> m.Job:
        wanted = submissions.Update(f"request-{next(self._numbers)}", document_id, m.NotePatch(**patch))
        job = self.state.update(wanted, retry)
        assert isinstance(job, m.Job)
        return job

    def patch(self, document_id: int, **patch: Any) -> m.Document:
        """Update a note with jobs that end at once; return the document."""
        changed = self.state.outcome(self.update(document_id, **patch).id)
        assert isinstance(changed, m.Document)
        return changed

    def note(self, text: str, **fields: Any) -> int:
        return self.document_of(self.submit(text, **fields))

    def file(self, name: str, text: str, **fields: Any) -> int:
        return self.document_of(self.state.accept(self.upload(name, text, **fields)))

    def upload(self, name: str, text: str | m.JobError, **fields: Any) -> submissions.Submission:
        """A submission of a file, with this text or an extraction error."""
        content = Extraction.of_note(text) if isinstance(text, str) else text
        return submissions.file(
            f"request-{next(self._numbers)}",
            m.FileFields(**fields),
            name,
            format_of(name),
            content,
            size=100,
            sha256=f"sha-{text}",
        )

    def document_of(self, job: m.Job) -> int:
        ended = self.state.job(job.id)
        assert ended.document_id is not None, ended
        return ended.document_id

    def found(self, query: str, **fields: Any) -> list[int]:
        """Return the ids of the documents that a keyword search finds, best first."""
        request = m.SearchRequest(query=query, **{"mode": "fts", **fields})
        answer = search(self.state.documents, request, self.state.now())
        return [result.document.id for result in answer.results]


API = "/api/v1"


@dataclass(frozen=True, slots=True)
class Running:
    """A simulator in the test's own loop, which gives direct access to its parts."""

    simulator: Simulator
    http: httpx.AsyncClient

    @property
    def namespace(self) -> Namespace:
        return self.simulator.namespaces.get(DEFAULT)

    def arm(
        self, name: str, effect: AnyEffect | None = None, *, operation: str | None = None, **when: Any
    ) -> str:
        fault = Fault(name=name, effect=effect, match=Match(operation=operation), when=When(**when))
        return self.namespace.faults.arm(fault).id

    async def sleeping(self, count: int) -> None:
        """Wait until `count` tasks sleep on the virtual clock."""
        clock = self.namespace.clock
        await eventually_async(lambda: clock.sleeping, lambda sleeping: sleeping == count)

    async def note(
        self, text: str, headers: Mapping[str, str] | None = None, **fields: Any
    ) -> httpx.Response:
        return await self.http.post(f"{API}/jobs", json={"text": text, **fields}, headers=headers)

    async def search(self, query: str, **fields: Any) -> httpx.Response:
        return await self.http.post(f"{API}/search", json={"query": query, **fields})

    async def raw(self, body: Mapping[str, Any], path: str = f"{API}/search") -> tuple[bytes, bool]:
        """Post JSON on a new connection; return all received bytes, and True if it ended with a reset."""
        port = httpx.URL(self.simulator.url).port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        data = msgspec.json.encode(body)
        writer.write(
            b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (path.encode(), len(data), data)
        )
        received = bytearray()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                while piece := await reader.read(65_536):
                    received += piece
        except ConnectionResetError:
            return bytes(received), True
        else:
            return bytes(received), False
        finally:
            writer.close()


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Running]:
    """Yield a simulator with these settings on free ports, and a client of its engine."""
    async with (
        Simulator(SimulatorSettings(port=0, **settings)) as simulator,
        # Without loading certificates, a client is created in a tenth of the time.
        httpx.AsyncClient(base_url=simulator.url, timeout=ANSWER_SECONDS, verify=False) as http,
    ):
        yield Running(simulator, http)
