"""The two implementations of the contract, engine and simulator, each in its own thread."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
from anyio.from_thread import start_blocking_portal

from kb_engine.app import create_app
from kb_engine.settings import EngineSettings
from kb_http.mount import HEADER_BYTES, REQUEST_LINE_BYTES
from kb_simulator import SimulatorSettings, in_thread
from tests.support.new_base import put_base
from tests.support.patience import ANSWER_SECONDS
from tests.support.serving import serving_app

API_KEY = "the-key-of-the-contract-tests"


def client_of(url: str, headers: Mapping[str, str] | None = None) -> httpx.Client:
    """A client with the engine's key. Loading certificates would take longer than its requests."""
    sent = {"Authorization": f"Bearer {API_KEY}", **(headers or {})}
    return httpx.Client(base_url=url, headers=sent, timeout=ANSWER_SECONDS, verify=False)


@contextmanager
def engine(home: Path, middlewares: Sequence[Any] = (), *, port: int = 0, **settings: Any) -> Iterator[str]:
    """Yield the base URL of an engine with an embedder without a model. `middlewares` are added around it."""
    chosen = {
        "home": home,
        "embedder": "hash",
        "api_key": API_KEY,
        "ingest_workers": 1,
        "keep_originals": True,
        **settings,
    }
    configured = EngineSettings(**chosen)
    if not (configured.store or configured.folder.exists()):
        put_base(configured.database)

    @asynccontextmanager
    async def serving() -> AsyncIterator[str]:
        app = await create_app(configured)
        app.middlewares[:0] = middlewares
        bounds = {"max_line_size": REQUEST_LINE_BYTES, "max_field_size": HEADER_BYTES}
        async with serving_app(app, port, **bounds) as url:
            yield url

    with start_blocking_portal() as loop, loop.wrap_async_context_manager(serving()) as url:
        yield url


@contextmanager
def simulator() -> Iterator[str]:
    """Yield the base URL of a simulator whose jobs take virtual time, so that they can be cancelled."""
    with in_thread(
        SimulatorSettings(port=0, jobs="seconds:5", api_key=API_KEY, keep_originals=True)
    ) as running:
        yield running.url
