"""A part of kb in a process of its own, from both sides.

The parent starts a child, with a pipe on which it reports that it is ready; `kb up` starts engine and server
this way, and the server its workers. The child ends when its parent does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kb_server.settings import ServerSettings

STOP_SECONDS = 20.0
"""Maximum time for a child to end before it is killed, in seconds.

A child lets bodies arrive for at most five seconds, and calls end for ten.
"""


class ChildProcess:
    """One child process. `name` is for people."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, ready: asyncio.StreamReader) -> None:
        self.name = name
        self._process = process
        self._ready = ready

    @classmethod
    async def start(
        cls, name: str, arguments: Sequence[str], *, stdin: bytes = b"", pass_fds: Sequence[int] = ()
    ) -> ChildProcess:
        """Run `python` with `arguments` (`-m`, a module, its flags); it inherits the descriptors `pass_fds`.

        `--supervised` names the pipe on which it reports that it is ready. It reads `stdin` first, and ends
        when its stdin is closed.
        """
        reading, writing = os.pipe()
        try:
            with _sigint_blocked():
                process = await asyncio.create_subprocess_exec(
                    # -P: a file of the current folder must not stand in for a module.
                    *(sys.executable, "-P", *arguments, "--supervised", str(writing)),
                    stdin=asyncio.subprocess.PIPE,
                    pass_fds=(writing, *pass_fds),
                )
        finally:
            os.close(writing)
        assert process.stdin is not None, "a pipe was asked for"
        process.stdin.write(stdin)
        ready = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(ready), os.fdopen(reading, "rb", buffering=0)
        )
        return cls(name, process, ready)

    @property
    def status(self) -> int | None:
        """The exit status; None while it runs, negative if a signal ended it."""
        return self._process.returncode

    async def url(self) -> str | None:
        """Return the base URL once the child is ready, or None if it ended before."""
        line = await self._ready.readline()
        return line.decode().strip() or None

    async def ended(self) -> str:
        """Wait for the exit of the child; return its description."""
        status = await self._process.wait()
        return f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"

    async def stop(self) -> None:
        """Send SIGTERM; kill the child if it does not end in time."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
        except TimeoutError:
            self.kill()
            await self._process.wait()

    def kill(self) -> None:
        """Kill it at once."""
        with suppress(ProcessLookupError):
            self._process.kill()


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Block SIGINT in children started within the block.

    Ctrl-C goes to every process of the terminal. Only the parent is to act on it, because it stops the
    children in their order; a child that received it too would take the parent's SIGTERM for the second
    signal, which ends it at once.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(frozen=True, slots=True)
class ParentLink:
    """The child's link to its parent; `descriptor` is the pipe for the URL, or None without a supervisor."""

    descriptor: int | None

    @classmethod
    def open(cls, descriptor: int | None) -> ParentLink:
        """Watch stdin under a supervisor: it ends when the supervisor does, even if killed."""
        if descriptor is not None:
            threading.Thread(target=_end_with_stdin, name="parent", daemon=True).start()
        return cls(descriptor)

    def report_ready(self, url: str) -> None:
        """Report the base URL to the parent; once."""
        if self.descriptor is not None:
            os.write(self.descriptor, f"{url}\n".encode())
            os.close(self.descriptor)


@dataclass(frozen=True, slots=True)
class Worker:
    """One of several processes on a port. `descriptor` is the channel over which connections come.

    In `folder` all workers count their metrics, each under its `slot`; its name is also the instance of the
    staged uploads that they share.
    """

    descriptor: int
    slot: int
    folder: Path

    @classmethod
    def parse(cls, text: str) -> Worker:
        """Return the worker of a command line; the inverse of `argument`."""
        descriptor, slot, folder = text.split(",", 2)
        return cls(int(descriptor), int(slot), Path(folder))

    def argument(self) -> str:
        """Return the value for the command line."""
        return f"{self.descriptor},{self.slot},{self.folder}"

    def channel(self) -> socket.socket:
        """Return the socket, which the caller then owns."""
        return socket.socket(fileno=self.descriptor)


def encode_settings(settings: ServerSettings) -> bytes:
    """Return one line for a worker's stdin, so that no process list shows its secrets."""
    return msgspec.json.encode(settings, enc_hook=str) + b"\n"


def read_settings(descriptor: int = 0) -> ServerSettings:
    """Return the settings that the parent wrote to `descriptor`; later data is left unread."""
    line = bytearray()
    while not line.endswith(b"\n") and (byte := os.read(descriptor, 1)):
        line += byte
    return msgspec.json.decode(line, type=ServerSettings, dec_hook=lambda kind, text: kind(text))


def _end_with_stdin() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
