"""The two implementations of the contract, engine and simulator, each in its own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from kb_engine.app import create_app
from kb_engine.settings import EngineSettings
from kb_http.mount import HEADER_BYTES, REQUEST_LINE_BYTES
from kb_simulator import SimulatorSettings, in_thread
from tests.support.new_base import put_base
from tests.support.patience import SILENCE, START_SECONDS

API_KEY = "the-key-of-the-contract-tests"


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
    started: Future[tuple[str, Callable[[], object]]] = Future()

    async def serve() -> None:
        app = await create_app(configured)
        app.middlewares[:0] = middlewares
        runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=SILENCE,
            max_line_size=REQUEST_LINE_BYTES,
            max_field_size=HEADER_BYTES,
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
            ended = asyncio.Event()
            stop = partial(asyncio.get_running_loop().call_soon_threadsafe, ended.set)
            started.set_result((f"http://127.0.0.1:{runner.addresses[0][1]}", stop))
            await ended.wait()
        finally:
            await runner.cleanup()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=run, name="kb-engine", daemon=True)
    thread.start()
    url, stop = started.result(START_SECONDS)
    try:
        yield url
    finally:
        if thread.is_alive():
            stop()
        thread.join()


@contextmanager
def simulator() -> Iterator[str]:
    """Yield the base URL of a simulator whose jobs take virtual time, so that they can be cancelled."""
    with in_thread(
        SimulatorSettings(port=0, jobs="seconds:5", api_key=API_KEY, keep_originals=True)
    ) as running:
        yield running.url
