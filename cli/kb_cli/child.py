"""A part of kb in a process of its own, with a pipe on which it says that it is ready."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

STOP_SECONDS = 20.0
"""How long a child may take to end before it is killed; each lets bodies arrive for five seconds at most, and
calls end for ten."""


class Child:
    """One child. `name` is for people."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, ready: asyncio.StreamReader) -> None:
        self.name = name
        self._process = process
        self._ready = ready

    @classmethod
    async def start(cls, name: str, arguments: Sequence[str], *, pass_fds: Sequence[int] = ()) -> Child:
        """Run `kb` with `arguments`; it inherits the descriptors `pass_fds`."""
        listening, telling = os.pipe()
        try:
            with _unhearing():
                process = await asyncio.create_subprocess_exec(
                    # -P: a file of the current folder must not stand in for a module.
                    *(sys.executable, "-P", "-m", "kb_cli.main", *arguments, "--supervised", str(telling)),
                    stdin=asyncio.subprocess.PIPE,
                    pass_fds=(telling, *pass_fds),
                )
        finally:
            os.close(telling)
        return cls(name, process, await _reader(listening))

    @property
    def status(self) -> int | None:
        """The exit status; None while it runs, negative where a signal ended it."""
        return self._process.returncode

    async def url(self) -> str | None:
        """The base URL once it is ready; None when it ended before."""
        line = await self._ready.readline()
        return line.decode().strip() or None

    async def ended(self) -> str:
        """Wait until it has ended; how, in words."""
        status = await self._process.wait()
        return f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"

    async def stop(self) -> None:
        """Ask it to end, and end it where it does not."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
        except TimeoutError:
            self.kill()
            await self._process.wait()

    def kill(self) -> None:
        """End it at once."""
        with suppress(ProcessLookupError):
            self._process.kill()


async def _reader(descriptor: int) -> asyncio.StreamReader:
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
    )
    return reader


@contextmanager
def _unhearing() -> Iterator[None]:
    """Children started inside do not hear SIGINT.

    Ctrl-C goes to everybody at the terminal. The parent alone is to hear it, for it stops the children in
    their order; a child that heard it too would take our SIGTERM for the second signal, which means: now.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
