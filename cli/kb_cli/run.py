"""`kb serve`, `kb stdio` and `kb engine`: each starts one part, and imports no other."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any

from kb_cli.config import is_set, read
from kb_cli.exits import CliError, Exit
from kb_cli.output import Output
from kb_cli.supervised import Supervised
from kb_config.settings import SettingsError
from kb_server.settings import ServerSettings


def serve(options: argparse.Namespace, _out: Output) -> int:
    """Serve the toolsets over HTTP until SIGTERM or Ctrl-C."""
    settings = _server_settings(
        options, host=options.host, port=options.port, home=options.home, workers=options.workers
    )
    shown = known(settings.toolsets)
    if settings.workers > 1 and options.worker is None:
        from kb_cli.workers import Workers

        return asyncio.run(Workers(options, settings).run())
    from kb_cli.http_server import run as run_server
    from kb_cli.worker import Worker
    from kb_server.observability.tracing import exporting
    from mcp_aiohttp.transport.serve import CannotListen, PortInUse

    worker = None if options.worker is None else Worker.of(options.worker)
    try:
        with exporting(os.environ):
            _runner()(run_server(settings, shown, on_ready=Supervised.of(options).ready, worker=worker))
    except PortInUse as error:
        raise CliError(Exit.FAILED, f"{error}; set KB_MCP_PORT to another port") from error
    except CannotListen as error:
        raise CliError(Exit.FAILED, f"{error}; check KB_MCP_HOST and KB_MCP_PORT") from error
    except SettingsError as error:
        raise CliError(Exit.USAGE, str(error)) from error
    return Exit.OK


def stdio(options: argparse.Namespace, _out: Output) -> int:
    """Serve toolsets on stdin and stdout until stdin ends."""
    # Clients show each line on stderr as an error: unless more is asked for, only what is one is written.
    level = None if is_set(ServerSettings, "LOG_LEVEL", options) else "warn"
    settings = _server_settings(
        options,
        toolsets=options.toolset,
        text_file=options.file,
        text_description=options.description,
        log_level=options.log_level or level,
    )
    names = known(settings.toolsets)
    from kb_server.observability.tracing import exporting

    try:
        with exporting(os.environ):
            asyncio.run(_serve_stdio(settings, names))
    except SettingsError as error:
        raise CliError(Exit.USAGE, str(error)) from error
    return Exit.OK


async def _serve_stdio(settings: ServerSettings, names: list[str]) -> None:
    from kb_server.hosting.mounts import combine
    from kb_server.hosting.toolset_server import hosted
    from kb_server.services import Services
    from kb_server.toolsets import build_toolset
    from mcp_aiohttp.transport.stdio import serve_stdio

    async with Services(settings) as services:
        await serve_stdio(hosted(combine([build_toolset(name, services) for name in names])))


def engine(options: argparse.Namespace, _out: Output) -> int:
    """Run the engine until SIGTERM or Ctrl-C."""
    from kb_engine.settings import EngineSettings

    settings = read(
        EngineSettings,
        options,
        host=options.host,
        port=options.port,
        home=options.home,
        embedder=options.embedder,
        log_level=options.log_level,
    )
    from kb_engine.app import StartError, serve
    from kb_engine.logs import configure_logging
    from kb_engine.store import BaseRefused

    configure_logging(settings.log_level)
    try:
        _runner()(serve(settings, on_ready=Supervised.of(options).ready))
    except (StartError, BaseRefused) as error:
        raise CliError(Exit.FAILED, str(error)) from error
    return Exit.OK


def _server_settings(options: argparse.Namespace, **flags: Any) -> ServerSettings:
    """The server's settings, and its log set up by them."""
    shared = {
        "engine_url": options.engine_url,
        "ragler_api_url": options.ragler_url,
        "log_level": options.log_level,
    }
    if "toolsets" not in flags:
        shared["toolsets"] = options.toolsets
    settings = read(ServerSettings, options, **{**shared, **flags})
    from kb_server.observability.logs import configure_logging

    secrets = (settings.engine_api_key, settings.ragler_api_key, settings.api_key)
    configure_logging(settings.log_level, secrets=secrets)
    return settings


def known(names: list[str]) -> list[str]:
    """The toolsets named, once each. Raises CliError where there is no such toolset."""
    from kb_server.toolsets import TOOLSETS

    for name in names:
        if name not in TOOLSETS:
            raise CliError(Exit.USAGE, f"there is no toolset {name!r}; there are {', '.join(TOOLSETS)}")
    if not names:
        raise CliError(Exit.USAGE, f"name a toolset; there are {', '.join(TOOLSETS)}")
    return list(dict.fromkeys(names))


def _runner() -> Callable[[Coroutine[Any, Any, None]], None]:
    """uvloop's `run` where it is installed, else asyncio's."""
    try:
        run: Callable[[Coroutine[Any, Any, None]], None] = import_module("uvloop").run
    except ImportError:
        run = asyncio.run
    return run
