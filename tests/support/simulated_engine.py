"""An engine of the simulator in the test's own loop, on a real port, and a client that a test can interrupt.

The simulator keeps the contract, as the conformance suite proves, so that a test of the server needs no
engine. Faults come from the simulator's registry, and a fault that never fired fails the test; requests are
in its journal. Interruptions that no fault provides (hold a call, change a document in between, replace a
response) go around `call` of the client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
import pytest

from kb_contracts.api import models as m
from kb_contracts.api.operations import CREATE_JOB, AnyOperation
from kb_server.engine_client.client import HttpEngine
from kb_server.engine_client.port import FileSource
from kb_simulator import AtOnce, Expectation, Fault, Match, Simulator, SimulatorSettings, When
from kb_simulator.engine import commits, submissions
from kb_simulator.engine.state import State
from kb_simulator.harness.faults import AnyEffect
from kb_simulator.harness.journal import RecordedRequest, Verification, verify
from kb_simulator.harness.namespaces import Namespace

MakeCall = Callable[[], Awaitable[Any]]
Around = Callable[[MakeCall], Awaitable[Any]]
"""Wraps a call of the engine: it gets the call as a function, and decides whether to make it."""


@dataclass(frozen=True)
class Journal:
    namespace: Namespace

    def requests(self, operation: str | None = None) -> list[RecordedRequest]:
        """The requests of `operation`, by default of all operations, in the order of arrival."""
        entries = (entry.request for entry in self.namespace.journal)
        return [request for request in entries if operation in (None, request.operation)]

    def bodies(self, operation: str) -> list[Any]:
        """The JSON bodies of one operation; a file gives its form fields, with name and SHA-256 as `file`."""
        return [msgspec.json.decode(request.body) for request in self.requests(operation)]

    def files(self) -> list[str]:
        """The SHA-256 of each received file."""
        return [body["file"][1] for body in self.bodies("createJob") if "file" in body]

    def changes(self) -> list[tuple[str, str]]:
        return [(each.method, each.path) for each in self.requests() if each.method != "GET"]

    def expect(self, *, exactly: int, **match: str) -> None:
        """Raise AssertionError, naming the nearest request, unless `exactly` requests match `match`."""
        wanted = Verification(expectations=(Expectation(match=Match(**match), exactly=exactly),))
        assert not (failures := verify(self.namespace.journal, wanted).failures), failures


@dataclass(frozen=True)
class SimulatedEngine:
    """One engine, its state, and control of its faults."""

    url: str
    namespace: Namespace
    journal: Journal

    @property
    def state(self) -> State:
        return self.namespace.state

    def arm(
        self, name: str, operation: str, effect: AnyEffect | None = None, *, times: int | None = 1
    ) -> None:
        """Arm a fault of the catalogue, or one with this effect, for the next `times` calls, or for all
        (None).
        """
        match, when = Match(operation=operation), When(times=times)
        self.namespace.faults.arm(Fault(name=name, effect=effect, match=match, when=when))

    def add(
        self, *tags: str, text: str | None = None, doc_type: m.DocType = "note", **members: Any
    ) -> m.Document:
        """Add a document, even if other jobs are held or fail; `members` are those of a submission."""
        name = f"added {len(self.state.jobs)}"
        request = m.NoteRequest(text=name if text is None else text, title=f"Document {name}", tags=[*tags])
        source = submissions.note(name, request)
        changes: dict[str, Any] = {"kind": "note" if doc_type == "note" else "file", **members}
        policy, self.state.policy = self.state.policy, AtOnce()
        job = self.state.accept(replace(source, doc_type=doc_type, **changes))
        self.state.policy = policy
        document_id = self.state.job(job.id).document_id
        assert document_id is not None, "a job that is done at once has a document"
        return self.document(document_id)

    def document(self, document_id: int = 1) -> m.Document:
        return self.state.documents.by_id[document_id].document

    def edit(self, document_id: int = 1, title: str = "Edited") -> None:
        """Change a note's title, as another caller would between two calls."""
        now = self.namespace.clock.microseconds()
        commits.replace_note(self.state.documents, document_id, m.NotePatch(title=title), now)

    def set_tags(self, *tags: str, document_id: int = 1) -> None:
        """Change a document's tags, as another caller would between two calls."""
        now = self.namespace.clock.microseconds()
        for tag in self.document(document_id).tags:
            self.state.documents.remove_tag(document_id, tag, None, now)
        self.state.documents.add_tags(document_id, [*tags], None, now)


@asynccontextmanager
async def simulated_engine(api_key: str = "", *, port: int = 0) -> AsyncIterator[SimulatedEngine]:
    """Yield an empty engine; at the end every armed fault must have fired."""
    async with Simulator(SimulatorSettings(port=port, api_key=api_key)) as simulator:
        namespace = simulator.namespaces.get("default")
        yield SimulatedEngine(simulator.url, namespace, Journal(namespace))
        assert not (unfired := namespace.faults.unfired()), unfired


@pytest.fixture
async def engine() -> AsyncIterator[SimulatedEngine]:
    async with simulated_engine() as engine:
        yield engine


class InterruptedEngine(HttpEngine):
    """The client of an engine; `around` holds the wrappers of calls by operation id."""

    def __init__(self, url: str, api_key: str = "", **options: Any) -> None:
        super().__init__(url, api_key, **options)
        self.around: dict[str, Around] = {}

    async def call(self, operation: AnyOperation, **content: Any) -> Any:
        return await self._within(operation.id, partial(super().call, operation, **content))

    async def send_file(self, file: FileSource, fields: m.FileFields, **options: Any) -> m.Job:
        job: m.Job = await self._within(CREATE_JOB.id, partial(super().send_file, file, fields, **options))
        return job

    async def _within(self, operation_id: str, make: MakeCall) -> Any:
        around = self.around.get(operation_id)
        return await (make() if around is None else around(make))
