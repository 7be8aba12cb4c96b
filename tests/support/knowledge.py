"""The toolset `knowledge` called as hosting calls it, with a simulated engine on a real port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from kb_contracts.api.models import NoteRequest
from kb_contracts.api.operations import CREATE_JOB, GET_DOCUMENT
from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.toolsets import build_toolset
from kb_server.waiting import Clock
from kb_simulator import ControlClient, Simulator, SimulatorSettings, in_thread
from tests.support.patience import ANSWER_SECONDS, JOB_SECONDS
from tests.support.server_fixtures import ToolCaller
from tests.support.tool_table import TOOLS

SEVEN = tuple(TOOLS["knowledge"])


class Knowledge(ToolCaller):
    """The seven tools. Files may be added from the folder `root` only; `engine` controls the engine.

    `told` is the progress that the calls reported; once there is any (`reported`), their job is accepted.
    """

    def __init__(self, services: Services, root: Path, engine: ControlClient) -> None:
        super().__init__(build_toolset("knowledge", services), progress=self._note)
        self.services, self.root, self.engine = services, root, engine
        self.told: list[tuple[float, float | None, str | None]] = []
        self.reported = asyncio.Event()

    async def _note(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        self.told.append((progress, total, message))
        self.reported.set()

    async def refused(self, name: str, **arguments: Any) -> dict[str, Any]:
        answer = await super().refused(name, **arguments)
        assert answer["success"] is False
        return answer

    def file(
        self, name: str, content: str | bytes = "<h1>Bees</h1><p>Bees keep warm in a cluster.</p>"
    ) -> str:
        path = self.root / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    async def note(self, text: str, **members: Any) -> str:
        """Return the id of a document that another tool has added, for which no file is read."""
        request = NoteRequest(text=text, **{"title": text, **members})
        engine = self.services.engine
        job = await engine.call(CREATE_JOB, body=request)
        done = await engine.wait_for_job(job.id, JOB_SECONDS)
        return str((await engine.call(GET_DOCUMENT, path={"document_id": done.document_id})).uid)

    async def added(self, name: str, content: str | bytes = "", **arguments: Any) -> str:
        """Add a file with this content (HTML by default), and return the id of its finished document."""
        path = self.file(name, content or f"<p>{name}</p>")
        result = await self.ok("knowledge-add", file_path=path, async_=False, **arguments)
        return str(result["document_id"])


@asynccontextmanager
async def knowledge_before(
    url: str, key: str, engine: ControlClient, folder: Path, *, clock: Clock | None = None, **settings: Any
) -> AsyncIterator[Knowledge]:
    """Yield the toolset for the engine at `url`, with the engine's clock or with `clock`."""
    root = folder / "files"
    root.mkdir()
    configured = ServerSettings(
        **{
            "engine_url": url,
            "engine_api_key": key,
            "home": folder / "home",
            "file_roots": [str(root)],
            "request_timeout_ms": round(ANSWER_SECONDS * 1000),
            **settings,
        }
    )
    clock = clock or Clock(now=lambda: datetime.fromisoformat(engine.clock.read().now))
    async with Services(configured, clock=clock) as services:
        yield Knowledge(services, root, engine)


# --- fixtures, for the conftest of a folder ---------------------------------------------------------


@pytest.fixture(scope="session")
def simulator() -> Iterator[Simulator]:
    with in_thread(SimulatorSettings(port=0, control=0)) as running:
        yield running


@pytest.fixture
def simulated(simulator: Simulator, request: pytest.FixtureRequest) -> Iterator[tuple[str, ControlClient]]:
    name = blake2b(request.node.nodeid.encode(), digest_size=8).hexdigest()
    assert simulator.control_url is not None
    with ControlClient(simulator.control_url) as control:
        engine = control.namespace(name, api_key=f"sim-{name}")
        yield f"sim-{name}", engine
        engine.remove()


@pytest.fixture
async def knowledge_with(
    simulator: Simulator, simulated: tuple[str, ControlClient], tmp_path: Path
) -> AsyncIterator[Callable[..., Any]]:
    """Return a factory of the toolset with other settings: `await knowledge_with(max_upload_bytes=10)`."""
    async with AsyncExitStack() as stack:

        async def make(**settings: Any) -> Knowledge:
            context = knowledge_before(simulator.url, *simulated, tmp_path, **settings)
            return await stack.enter_async_context(context)

        yield make


@pytest.fixture
async def knowledge(knowledge_with: Callable[..., Any]) -> Knowledge:
    made: Knowledge = await knowledge_with()
    return made
