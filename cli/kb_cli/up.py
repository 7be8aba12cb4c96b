"""`kb up`: engine and MCP server as two children of one command.

start the engine ─▶ it tells its URL ─▶ start the server with it ─▶ it tells its URL ─▶ say so
Ctrl-C, SIGTERM ─▶ stop the server, so that its calls can end ─▶ stop the engine ─▶ exit 0
a child ends by itself ─▶ say so ─▶ stop the other ─▶ exit 1
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import signal
import socket
from urllib.parse import urlsplit

from kb_cli.config import config_file, is_set, read
from kb_cli.output import CliError, Exit, Output
from kb_engine.settings import EngineSettings
from kb_server.processes import ChildProcess
from kb_server.settings import ServerSettings
from kb_server.toolsets import checked_names

_ANY = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - what to ask where everything is listened on


def run(options: argparse.Namespace, out: Output) -> int:
    """Run both until one ends or we are told to stop."""
    # Looked at here too, so that what cannot work is told in one line before the engine opens its base.
    server = read(ServerSettings, options)
    engine = read(EngineSettings, options, port=options.engine_port)
    checked_names(server.toolsets)
    _check_free(server.host, server.port, "KB_MCP_PORT")
    _check_free(engine.host, engine.port, "KB_ENGINE_PORT")
    has_ragler = is_set(ServerSettings, "RAGLER_API_URL", options)
    return asyncio.run(Up(options, server, out, has_ragler=has_ragler).run())


def _check_free(host: str, port: int, variable: str) -> None:
    """Raises CliError where somebody listens; any other trouble is the child's to tell."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                taken = f"{host}:{port} is in use; set {variable} to another port"
                raise CliError(Exit.FAILED, taken) from error


class Up:
    """The two children and who waits for them. `has_ragler`: `RAGLER_API_URL` names a backend."""

    def __init__(
        self, options: argparse.Namespace, settings: ServerSettings, out: Output, *, has_ragler: bool
    ) -> None:
        self._options = options
        self._has_ragler = has_ragler
        self._settings = settings
        self._out = out
        self._children: list[ChildProcess] = []

    async def run(self) -> int:
        """Start both, wait, stop both; the exit status.

        Raises:
            CliError: a child ended by itself.
        """
        loop, stop = asyncio.get_running_loop(), asyncio.Event()

        def on_signal() -> None:
            if not stop.is_set():
                stop.set()
                return
            for child in self._children:
                child.kill()

        # Not given back: while the children are being stopped a second Ctrl-C must still kill them.
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
        try:
            return await self._until(stop)
        finally:
            for child in reversed(self._children):
                await child.stop()

    async def _until(self, stop: asyncio.Event) -> int:
        stopped = asyncio.ensure_future(stop.wait())
        started = asyncio.ensure_future(self._start())
        await asyncio.wait({stopped, started}, return_when=asyncio.FIRST_COMPLETED)
        if not started.done():
            started.cancel()
            return Exit.OK
        if (failed := started.result()) is not None:
            how = await failed.ended()
            if failed.status in (Exit.FAILED, Exit.USAGE):
                return failed.status  # its own, for it has printed why in a line of its own
            raise CliError(Exit.FAILED, f"the {failed.name} {how} before it was ready")
        ends = {asyncio.ensure_future(child.ended()): child for child in self._children}
        await asyncio.wait({stopped, *ends}, return_when=asyncio.FIRST_COMPLETED)
        if stopped.done():
            return Exit.OK
        ended = next(child for end, child in ends.items() if end.done())
        raise CliError(Exit.FAILED, f"the {ended.name} {await ended.ended()}; stopping")

    async def _start(self) -> ChildProcess | None:
        """Start both and say where they are; the one that ended before it was ready, if one did."""
        options, settings = self._options, self._settings
        engine = await self._child("engine", "engine", home=options.home, port=options.engine_port)
        listening = await engine.url()
        if listening is None:
            return engine
        parts = urlsplit(listening)
        # As this machine can ask it, where it listens on every address.
        engine_url = f"http://{_ANY[parts.hostname]}:{parts.port}" if parts.hostname in _ANY else listening
        server = await self._child(
            "MCP server",
            "serve",
            home=options.home,
            port=options.port,
            toolsets=options.toolsets,
            engine_url=engine_url,
            # Without a backend of its own, the toolset ragler asks this engine, with this engine's key.
            ragler_url=None if self._has_ragler else engine_url,
        )
        url = await server.url()
        if url is None:
            return server
        header = ' --header "Authorization: Bearer $KB_MCP_API_KEY"' if settings.api_key else ""
        self._out.text("kb is up; Ctrl-C stops it.", style="bold green")
        self._out.text(
            f"  endpoint     {url}/mcp\n"
            f"  engine       {listening}\n"
            f"  data folder  {settings.home}\n\n"
            "Claude Code learns of it with:\n"
            f"  claude mcp add --transport http kb {url}/mcp{header}"
        )
        if engine_url != settings.engine_url.rstrip("/"):
            # The other commands look elsewhere, and would find no engine or another one.
            self._out.text(
                f"\nkb search, kb add and the like ask it after:\n  export KB_ENGINE_URL={engine_url}"
            )
        self._out.stdout.flush()
        return None

    async def _child(self, name: str, command: str, **flags: str | None) -> ChildProcess:
        file = config_file(self._options)
        flags |= {"log_level": self._options.log_level, "config": None if file is None else str(file)}
        arguments = [
            part
            for flag, value in flags.items()
            if value is not None
            for part in (f"--{flag.replace('_', '-')}", value)
        ]
        child = await ChildProcess.start(name, ["-m", "kb_cli.main", command, *arguments])
        self._children.append(child)
        return child
