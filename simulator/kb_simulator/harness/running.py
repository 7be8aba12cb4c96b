"""A simulator that runs: in an event loop, or in a thread with a loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from aiohttp import web

from kb_contracts.http.connections import (
    CONNECTIONS,
    ConnectionLimits,
    ConnectionTable,
    Listener,
    connection_log,
    connections_within_descriptors,
    listen,
)
from kb_contracts.http.mount import engine_admission
from kb_simulator.harness.app import build_app
from kb_simulator.harness.clock import ClockMode
from kb_simulator.harness.namespaces import Namespaces
from kb_simulator.settings import SimulatorSettings

LOOPBACK = "127.0.0.1"

_SHUTDOWN_SECONDS = 2.0
_START_SECONDS = 30.0


class Simulator:
    """The fake engine, and its control plane where `settings.control` names a port, on their sockets.

    An asynchronous context manager: it listens inside, and has let go of everything after.
    """

    def __init__(self, settings: SimulatorSettings) -> None:
        self.settings = settings
        self.namespaces = Namespaces(
            settings.seed, ClockMode(settings.clock), settings.api_key, settings.policy, settings.namespaces
        )
        self._runners: list[web.AppRunner] = []
        self._listeners: list[Listener] = []
        self._url = ""
        self._control_url: str | None = None

    @property
    def url(self) -> str:
        """Where the fake engine listens."""
        return self._url

    @property
    def control_url(self) -> str | None:
        """Where the control plane listens, None where it is off."""
        return self._control_url

    async def __aenter__(self) -> Simulator:
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stop()

    async def _start(self) -> None:
        settings = self.settings
        app = build_app(self.namespaces, max_upload_bytes=settings.max_upload_bytes, host=settings.host)
        self._url = await self._listen(app, settings.host, settings.port)
        if settings.control is not None:
            # Imported here: most runs in CI want neither the control plane nor its page.
            from kb_simulator.harness.control import build_control

            control = build_control(self.namespaces, engine_url=self._url)
            self._control_url = await self._listen(control, LOOPBACK, settings.control)

    async def _listen(self, app: web.Application, host: str, port: int) -> str:
        engine_admission().install(app)
        runner = web.AppRunner(
            app,
            access_log=None,
            logger=connection_log(),
            handler_cancellation=True,
            shutdown_timeout=_SHUTDOWN_SECONDS,
        )
        self._runners.append(runner)
        await runner.setup()
        make = runner.server
        assert make is not None, "a runner that was set up has a server"
        most = connections_within_descriptors(CONNECTIONS)
        listener = await listen(ConnectionTable(make, ConnectionLimits(most, most)), host, port)
        self._listeners.append(listener)
        address = listener.address
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        return f"http://{host}:{address[1]}"

    async def _stop(self) -> None:
        self.namespaces.release()
        while self._listeners:
            self._listeners.pop().close()
        while self._runners:
            await self._runners.pop().cleanup()


@contextmanager
def in_thread(settings: SimulatorSettings) -> Iterator[Simulator]:
    """A simulator in a thread of its own, for programs without an event loop.

    Only its addresses are to be used from other threads; everything else goes through the control plane.

    Raises:
        OSError: a port is taken.
    """
    running = _Running(settings)
    running.start()
    try:
        yield running.wait()
    finally:
        running.stop()


class _Running(threading.Thread):
    def __init__(self, settings: SimulatorSettings) -> None:
        super().__init__(name="kb-simulator", daemon=True)
        self._settings = settings
        self._ready = threading.Event()
        self._simulator: Simulator | None = None
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Event | None = None

    def run(self) -> None:
        """The thread."""
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001  # told to the thread that waits, which raises it
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        async with Simulator(self._settings) as self._simulator:
            self._ready.set()
            await self._ended.wait()

    def wait(self) -> Simulator:
        """The simulator, once it listens."""
        if not self._ready.wait(_START_SECONDS):
            raise TimeoutError(f"the simulator did not start within {_START_SECONDS} seconds")
        if self._failure is not None:
            raise self._failure
        assert self._simulator is not None, "a thread that is ready has a simulator"
        return self._simulator

    def stop(self) -> None:
        """End the thread."""
        if self._loop is not None and self._ended is not None and self.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)
        self.join()
