"""A part of kb in a process of its own, with a pipe on which it reports that it is ready."""

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


class ChildProcess:
    """One child. `name` is for people."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, ready: asyncio.StreamReader) -> None:
        self.name = name
        self._process = process
        self._ready = ready

    @classmethod
    async def start(
        cls, name: str, arguments: Sequence[str], *, stdin: bytes = b"", pass_fds: Sequence[int] = ()
    ) -> ChildProcess:
        """Run `python` with `arguments` (`-m`, a module, its flags); it inherits the descriptors `pass_fds`.

        It is told by `--supervised` where to report that it is ready, reads `stdin` first, and ends when the
        rest of its stdin does.
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


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Children started inside do not receive SIGINT.

    Ctrl-C goes to every process of the terminal. Only the parent is to act on it, because it stops the
    children in their order; a child that received it too would take the parent's SIGTERM for the second
    signal, which means: at once.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
