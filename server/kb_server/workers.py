"""The parent of `KB_WORKERS` processes that serve one port.

    listen ─▶ start the workers ─▶ all are ready: report it ─▶ hand each connection to the next worker in turn
    a worker dies ─▶ the remaining workers take over ─▶ start another, after a doubling pause
    SIGTERM, SIGINT ─▶ accept no more ─▶ let the workers end their calls ─▶ exit 0; a second signal: end now
    a worker cannot even start the first time ─▶ stop the remaining workers ─▶ its exit status

The kernel could share connections among workers that listen on the port themselves (SO_REUSEPORT), but loses
no fewer calls: connections in the queue of a worker that dies are reset. With 64 clients and a new connection
for every call, killing one of two workers lost 32 calls that way and 31 by handing over, draining it 13 and
12 (medians of 5). Turns also give each worker the same number of keep-alive connections, which the kernel
leaves to chance.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import shutil
import socket
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kb_server.processes import ChildProcess, Worker, encode_settings
from kb_server.services import http_base
from kb_server.settings import ServerSettings
from kb_server.uploads.staging import Staging
from mcp_aiohttp.transport.http import CannotListen, PortInUse
from mcp_aiohttp.transport.signals import on_stop_signal

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0
"""Backoff before a dead worker is restarted, in seconds: the first time, and the maximum."""
LONG_LIVED = 60.0
"""Uptime of a worker after which its restart backoff is reset, in seconds."""

_BACKLOG = 1024
_REPORTED = (1, 2)
"""Exit statuses of a worker that has reported in one line why it cannot start."""


@dataclass(slots=True)
class _Slot:
    """The slot of a worker, which gets connections while it is `ready`."""

    number: int
    child: ChildProcess | None = None
    channel: socket.socket | None = None
    ready: bool = False
    pause: float = FIRST_PAUSE


class WorkerSupervisor:
    """The workers, and the socket whose connections they get. `on_ready` receives the base URL."""

    def __init__(self, settings: ServerSettings, on_ready: Callable[[str], object]) -> None:
        self._settings = settings
        self._on_ready = on_ready
        self._slots = [_Slot(number) for number in range(settings.workers)]
        self._turn = 0
        self._listening = False

    async def run(self) -> int:
        """Serve until SIGTERM or SIGINT; return the exit status.
        Raises CannotListen: the address cannot be listened on.
        """
        self._listener = listener = _listener(self._settings)
        self._port = int(listener.getsockname()[1])
        self._folder = Path(tempfile.mkdtemp(prefix="kb-workers-"))
        staging = Staging(self._settings.home / "staging", self._folder.name)
        # Held here, so that uploads outlive a worker; a server without uploads needs no folder.
        with suppress(OSError):
            await asyncio.to_thread(staging.open)
        stop = asyncio.Event()
        with on_stop_signal(stop.set):
            stopped = asyncio.create_task(stop.wait())
            keepers = [asyncio.create_task(self._keep(slot)) for slot in self._slots]
            waited: list[asyncio.Task[Any]] = [stopped, *keepers]
            try:
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                return next((keeper.result() for keeper in keepers if keeper.done()), 0)
            finally:
                stopped.cancel()
                asyncio.get_running_loop().remove_reader(listener.fileno())
                listener.close()
                for keeper in keepers:
                    keeper.cancel()
                await asyncio.wait(keepers)
                await asyncio.gather(*(slot.child.stop() for slot in self._slots if slot.child is not None))
                await asyncio.to_thread(staging.close)
                await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _keep(self, slot: _Slot) -> int:
        """Keep a worker in `slot`; return its exit status only if the very first cannot start."""
        first = True
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            child = await self._start(slot)
            slot.ready = started = await child.url() is not None
            self._accept_once_all_are_ready()
            how = await child.ended()
            if slot.channel is not None:
                slot.channel.close()
            slot.child, slot.channel, slot.ready = None, None, False
            if first and not started:
                return child.status if child.status in _REPORTED else 1
            first = False
            if loop.time() - began > LONG_LIVED:
                slot.pause = FIRST_PAUSE
            fields = {"worker": slot.number, "seconds": slot.pause}
            log.error("A worker %s; starting a replacement", how, extra=fields)
            await asyncio.sleep(slot.pause)
            slot.pause = min(2 * slot.pause, LONGEST_PAUSE)

    async def _start(self, slot: _Slot) -> ChildProcess:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        with theirs:
            worker = Worker(theirs.fileno(), slot.number, self._folder)
            slot.child = await ChildProcess.start(
                "worker",
                ["-m", "kb_server", "--worker", worker.argument()],
                stdin=encode_settings(msgspec.structs.replace(self._settings, port=self._port)),
                pass_fds=(theirs.fileno(),),
            )
        slot.channel = ours
        return slot.child

    def _accept_once_all_are_ready(self) -> None:
        if self._listening or not all(slot.ready for slot in self._slots):
            return
        self._listening = True
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)
        url = http_base(self._settings, self._port)
        log.info("Listening", extra={"url": url, "workers": len(self._slots)})
        self._on_ready(url)

    def _accept(self) -> None:
        for _ in range(_BACKLOG):
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # no connection is waiting, or the client left first, or there is no free descriptor
            # If no worker takes it, the connection is closed and the client may retry.
            with connection:
                for _ in self._slots:
                    slot = self._slots[self._turn % len(self._slots)]
                    self._turn += 1
                    if slot.ready and slot.channel is not None:
                        # it died just now, or has stopped accepting: try the next one
                        with suppress(OSError):
                            socket.send_fds(slot.channel, [b"c"], [connection.fileno()])
                            break


def _listener(settings: ServerSettings) -> socket.socket:
    """Return a listening socket. Raises CannotListen."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    host = settings.host.strip("[]")
    try:
        listener = socket.create_server((host, settings.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(host, settings.port, "another process listens there already") from error
        raise CannotListen(host, settings.port, error.strerror or str(error)) from error
    listener.setblocking(False)
    return listener
