"""The commands that run one part of kb, and import no other."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from importlib.util import find_spec

from kb_cli.config import base_failures, config_file, is_set, offline_embedder, read
from kb_cli.output import CliError, Output, counted
from kb_server.processes import ParentLink
from kb_server.settings import ServerSettings


def serve(options: argparse.Namespace, _out: Output) -> int:
    """Serve the toolsets over HTTP until SIGTERM or Ctrl-C."""
    settings = read(ServerSettings, options)
    from kb_server.app import StartError, start

    try:
        return start(settings, on_ready=ParentLink.open(options.supervised).report_ready)
    except StartError as error:
        raise CliError(str(error)) from error


def stdio(options: argparse.Namespace, _out: Output) -> None:
    """Serve toolsets on stdin and stdout until stdin ends."""
    settings = read(ServerSettings, options)
    if options.log_level is None and not is_set(ServerSettings, "LOG_LEVEL", options):
        # Clients show each line on stderr as an error. The toolset textfile reports its start nevertheless.
        level = "info" if settings.toolsets == ["textfile"] else "warn"
        settings = read(ServerSettings, options, log_level=level)
    is_named = options.engine_url is not None or is_set(ServerSettings, "KB_ENGINE_URL", options)
    from kb_server.stdio import start

    start(settings, None if is_named else _own_engine(options, settings))


def _own_engine(options: argparse.Namespace, settings: ServerSettings) -> list[str] | None:
    """Return the command for the engine of the data folder, or None if its packages are not installed."""
    if find_spec("apsw") is None:
        return None
    file = config_file(options)
    return [
        *(sys.executable, "-P", "-m", "kb_cli.main", "engine", "--host", "127.0.0.1", "--port", "0"),
        *("--home", str(settings.home.absolute())),
        *("--linger", str(settings.engine_linger)),
        *(() if file is None else ("--config", str(file.absolute()))),
    ]


def engine(options: argparse.Namespace, _out: Output) -> None:
    """Run the engine until SIGTERM or Ctrl-C, or until it has been unused for `linger` seconds."""
    from kb_engine.settings import EngineSettings

    settings = read(EngineSettings, options)
    from kb_engine.__main__ import start

    with base_failures():
        start(settings, on_ready=ParentLink.open(options.supervised).report_ready, linger=options.linger)


def simulator(options: argparse.Namespace, _out: Output) -> None:
    """Serve the simulator until Ctrl-C; print its URL when it is ready."""
    from kb_simulator.settings import SimulatorSettings

    settings = read(SimulatorSettings, options)
    # Before aiohttp is imported: it would read all certificates of the machine, for a program without TLS.
    os.environ.setdefault("SSL_CERT_FILE", os.devnull)
    from kb_simulator.__main__ import serve as serve_simulator

    try:
        asyncio.run(serve_simulator(settings))
    except OSError as error:
        raise CliError(f"{error.strerror or error}; choose other ports") from error


def reindex(options: argparse.Namespace, out: Output) -> None:
    """Embed every chunk with the embedder of the settings, which becomes the base's own.

    An outage of an embedding endpoint for a minute or two does not abort the work.
    """
    from kb_engine.settings import EngineSettings

    settings = read(EngineSettings, options)
    from kb_engine.composition import store_module
    from kb_engine.store.sqlite.opening import reindex_sqlite

    def progress(done: int, total: int) -> None:
        out.progress(f"{done} of {total} passages", is_last=done >= total)

    embedder = offline_embedder(settings)
    with base_failures(advice="; run it again to continue"), embedder:
        identity, embed = embedder.identity, embedder.embed
        if settings.address is None:
            count = reindex_sqlite(settings.database, embedder=identity, embed=embed, progress=progress)
        else:
            done = store_module(settings.address).reindex(
                settings.address, embedder=identity, embed=embed, progress=progress
            )
            count = asyncio.run(done)
    base = str(settings.address or settings.database)
    if not out.answered({"chunks": count, "embedder": identity.name, "base": base}):
        out.text(f"{counted(count, 'passage')} embedded with {identity.name}", style="green")
