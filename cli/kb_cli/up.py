"""`kb up`: engine and MCP server as two children of one command, or with `--single` in its own process.

start the engine ─▶ it reports its URL ─▶ start the server with it ─▶ it reports its URL ─▶ print both
Ctrl-C, SIGTERM ─▶ stop the server, so that its calls can end ─▶ stop the engine ─▶ exit 0
a child ends by itself ─▶ before it was ready: stop the other, exit 1
                       ─▶ later: report it, restart it at its port, with a growing delay

If an engine of this data folder is running already, started by `kb stdio` for example, that one is used. In
one process the server calls the engine's operations directly; the engine still listens, for the other
commands.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import shlex
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec.structs import replace

from kb_cli.config import base_failures, config_file, is_set, read
from kb_cli.output import CliError, Exit, Output, UsageError
from kb_config.rendezvous import Rendezvous
from kb_engine.settings import EngineSettings
from kb_server.parts import issuer_part, site_part
from kb_server.processes import ChildProcess
from kb_server.services import checked_keys
from kb_server.settings import ServerSettings
from kb_server.toolsets import EXTRA, EXTRA_USE, checked_names

if TYPE_CHECKING:
    from kb_http.direct import DirectCalls

_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0
_WELL_SECONDS = 60.0
"""Uptime in seconds after which the restart delay is its minimum again. It doubles up to its maximum."""
_ORIGINALS_BYTES = 5 << 30
"""Maximum size of the original files that a new base keeps, in bytes."""
_ANY = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - the address to connect to for a listener on all addresses


def run(options: argparse.Namespace, out: Output) -> int:
    """Run both until a signal arrives, or one of them fails to start."""
    # Checked here too, so that an error is one line before the engine opens its base.
    server = read(ServerSettings, options)
    engine = read(EngineSettings, options, port=options.engine_port)
    checked_names(server.toolsets)
    checked_keys(server)
    if options.single and server.workers > 1:
        several = f"KB_WORKERS={server.workers}: --single is one process"
        raise UsageError(f"{several}; set KB_WORKERS to 1, or leave --single out")
    advice = _on_other_ports(options, server.port, engine.port)
    _check_free(server.host, server.port, "KB_MCP_PORT", advice)
    running = Rendezvous(engine.folder).join()
    if running is None:
        _check_free(engine.host, engine.port, "KB_ENGINE_PORT", advice)
    is_new = running is None and not engine.address and not engine.database.exists()
    bounding = ("KB_KEEP_ORIGINALS", "KB_ORIGINALS_BYTES")
    originals = 0
    if is_new and not any(is_set(EngineSettings, each, options) for each in bounding):
        originals = _ORIGINALS_BYTES
    if options.single:
        engine = replace(engine, originals_bytes=originals or engine.originals_bytes)
        return _run_single(options, server, engine, out, running, originals)
    has_ragler = is_set(ServerSettings, "RAGLER_API_URL", options)
    return asyncio.run(Up(options, server, out, running, has_ragler=has_ragler, originals=originals).run())


def _run_single(
    options: argparse.Namespace,
    server: ServerSettings,
    settings: EngineSettings,
    out: Output,
    running: str | None,
    originals: int,
) -> int:
    if running is not None:
        there = f"the engine of this data folder is already running at {running}"
        raise CliError(f"{there}; stop it, or leave --single out to use it")
    from kb_engine import serving
    from kb_engine.app import CALLS
    from kb_server.app import EngineHere, StartError, start

    listening = ""

    @asynccontextmanager
    async def engine_here() -> AsyncIterator[tuple[str, DirectCalls]]:
        nonlocal listening
        async with serving.running(settings) as (listening, app):
            yield _reachable(listening), app[CALLS]

    def ready(url: str) -> None:
        _print_addresses(out, options, server, url, listening, originals)

    with base_failures(StartError):
        return start(server, on_ready=ready, engine=EngineHere(engine_here(), settings.secrets))


def _reachable(url: str) -> str:
    """Return the URL of a listener for clients on this machine, also if it listens on every address."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{_ANY[parts.hostname]}:{parts.port}" if parts.hostname in _ANY else url


def _print_addresses(
    out: Output,
    options: argparse.Namespace,
    settings: ServerSettings,
    url: str,
    listening: str,
    originals: int,
    further: str = "",
) -> None:
    """Print the URLs of the server (`url`) and the engine (`listening`), and how to configure clients.

    A new base keeps `originals` bytes of files; 0: not new, or by the settings.
    """
    header, advice = "", ""
    if settings.api_key:
        header = ' --header "Authorization: Bearer $KB_MCP_API_KEY"'
    elif not issuer_part(settings) and checked_keys(settings).has_file_keys:
        header = ' --header "Authorization: Bearer $TOKEN"'
        advice = "\nfirst set TOKEN to the token of a key; kb keys create prints it once"
    out.text("kb is up; Ctrl-C stops it.", style="bold green")
    part = site_part(settings)
    pages = f"  {part.name:13}{url}/\n" if part else ""
    kept = ""
    if originals:
        kept = f"  files        are kept up to {originals >> 30} GiB, the oldest dropped first; not with "
        kept += "KB_KEEP_ORIGINALS=false\n"
    out.text(
        f"  endpoint     {url}/mcp\n"
        f"{pages}"
        f"  engine       {listening}{further}\n"
        f"  data folder  {settings.home}\n"
        f"{kept}\n"
        "To connect Claude Code:\n"
        f"  claude mcp add --transport http kb {url}/mcp{header}{advice}"
    )
    if EXTRA not in settings.toolsets:
        out.text(f"{EXTRA_USE}:\n  claude mcp add --transport http {EXTRA} {url}/mcp/{EXTRA}{header}")
    # The other commands find both in the data folder, unless their settings name another kb.
    named: dict[str, object] = {}
    if options.home is not None:
        named["KB_HOME"] = settings.home.absolute()
    engine_url = _reachable(listening)
    if engine_url != settings.engine_url.rstrip("/") and is_set(ServerSettings, "KB_ENGINE_URL", options):
        named["KB_ENGINE_URL"] = engine_url
    if options.port is not None and is_set(ServerSettings, "KB_MCP_PORT", options):
        named["KB_MCP_PORT"] = options.port
    if named:
        exports = shlex.join(f"{name}={value}" for name, value in named.items())
        out.text(f"\nTo use this kb with kb search, kb connect and other commands:\n  export {exports}")
    out.stdout.flush()


def _on_other_ports(options: argparse.Namespace, *taken: int) -> str:
    """Return this command line with ports other than those of server and engine, `taken`."""
    port, engine_port = (each + 100 if each < 65_000 else each - 100 for each in taken)
    names = ("config", "home", "toolsets", "log_level")
    values = {name: getattr(options, name) for name in names} | {"port": port, "engine_port": engine_port}
    return shlex.join(["kb", "up", *(["--single"] if options.single else []), *_as_flags(values)])


def _check_free(host: str, port: int, variable: str, advice: str) -> None:
    """Raises CliError if the port is in use; other errors are reported by the child."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                taken = f"{host}:{port} ({variable}) is in use; try: {advice}"
                raise CliError(taken) from error


def _as_flags(values: Mapping[str, object]) -> list[str]:
    """Return the values as arguments of a command, without those that are None."""
    given = ((name.replace("_", "-"), str(value)) for name, value in values.items() if value is not None)
    return [word for name, value in given for word in (f"--{name}", value)]


@dataclass
class Part:
    """Engine or server: the `kb` command that runs it, with its flags, and its current process."""

    name: str
    command: str
    flags: dict[str, object]
    child: ChildProcess | None = None
    started: float = 0.0


@dataclass(eq=False, repr=False)  # options and settings hold keys
class Up:
    """The two children and their supervision.

    `running` is the URL of an engine that already serves this data folder; None: one is started.
    `has_ragler`: `RAGLER_API_URL` names a backend. A new base keeps `originals` bytes of files.
    """

    options: argparse.Namespace
    settings: ServerSettings
    out: Output
    running: str | None
    has_ragler: bool
    originals: int
    _parts: list[Part] = field(default_factory=list, init=False)

    async def run(self) -> int:
        """Start both, keep them running, stop both; return the exit status.
        Raises CliError: one ended before it was ready.
        """
        loop, stop = asyncio.get_running_loop(), asyncio.Event()

        def on_signal() -> None:
            if not stop.is_set():
                stop.set()
                return
            for child in self._children():
                child.kill()

        # The handlers stay installed: a second Ctrl-C must kill the children while they are being stopped.
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
        try:
            return await self._until(stop)
        finally:
            for child in reversed(self._children()):
                await child.stop()

    def _children(self) -> list[ChildProcess]:
        return [part.child for part in self._parts if part.child is not None]

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
                return failed.status  # the child's own status; it has printed the reason
            raise CliError(f"the {failed.name} {how} before it was ready")
        keeping = [asyncio.ensure_future(self._keep(part)) for part in self._parts]
        await asyncio.wait({stopped, *keeping}, return_when=asyncio.FIRST_COMPLETED)
        for keeper in keeping:
            keeper.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)
        return Exit.OK

    async def _keep(self, part: Part) -> None:
        """Restart a part whenever it has ended."""
        now, wait = asyncio.get_running_loop().time, _FIRST_WAIT
        while part.child is not None:
            how = await part.child.ended()
            if now() - part.started >= _WELL_SECONDS:
                wait = _FIRST_WAIT
            self.out.note(f"the {part.name} {how}; it is started again in {wait:g} s")
            await asyncio.sleep(wait)
            wait = min(_LONGEST_WAIT, 2 * wait)
            if await self._url_of(part) is not None:
                self.out.note(f"the {part.name} runs again")

    async def _start(self) -> ChildProcess | None:
        """Start both and print their URLs; return the child that ended before it was ready, if any."""
        options = self.options
        listening = self.running
        if listening is None:
            kept = {"originals_bytes": self.originals or None}
            engine = Part("engine", "engine", {"home": options.home, "port": options.engine_port, **kept})
            listening = await self._url_of(engine)
            if listening is None:
                return engine.child
        engine_url = _reachable(listening)
        flags: dict[str, object] = {
            "home": options.home,
            "port": options.port,
            "toolsets": options.toolsets,
            "engine_url": engine_url,
            # Without a backend of its own, the toolset ragler uses this engine, with this engine's key.
            "ragler_url": None if self.has_ragler else engine_url,
        }
        server = Part("MCP server", "serve", flags)
        url = await self._url_of(server)
        if url is None:
            return server.child
        shared = "" if self.running is None else "  (already running; kb up does not stop it)"
        _print_addresses(self.out, options, self.settings, url, listening, self.originals, shared)
        return None

    async def _url_of(self, part: Part) -> str | None:
        """Start a process for `part`; return its URL, whose port it keeps, or None if it ended before."""
        further = {"log_level": self.options.log_level, "config": config_file(self.options)}
        arguments = ["-m", "kb_cli.main", part.command, *_as_flags(part.flags | further)]
        part.child = await ChildProcess.start(part.name, arguments)
        part.started = asyncio.get_running_loop().time()
        if part not in self._parts:
            self._parts.append(part)
        url = await part.child.url()
        if url is not None:
            part.flags["port"] = str(urlsplit(url).port)
        return url
