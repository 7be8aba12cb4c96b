"""kb's MCP server on stdin and stdout; a module of its own, because `app` imports an HTTP server.

A client starts such a server for every conversation, so each import counts. All of them share the engine of
their data folder, unless another is configured.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack

from kb_config.logs import configure_logging
from kb_config.tracing import exporting
from kb_server.observability.auditing import writing
from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.toolsets import build_toolset, checked_names

log = logging.getLogger(__name__)

_ON_ENGINE = frozenset({"kb", "kb-extra", "chatgpt", "knowledge"})
"""The toolsets that need the engine."""


def start(settings: ServerSettings, engine_command: Sequence[str] | None = None) -> None:
    """Serve until stdin ends. `engine_command` starts the data folder's engine; None if one is configured.
    Raises SettingsError: a setting cannot be used.
    """
    names = checked_names(settings.toolsets)
    configure_logging(settings.log_level, part="server", secrets=settings.secrets)
    for warning in settings.removal_warnings():
        log.warning(warning)
    with exporting(os.environ, "kb-server"), writing(settings.audit, settings.home):
        asyncio.run(_serve(settings, names, engine_command))


async def _serve(settings: ServerSettings, names: list[str], engine_command: Sequence[str] | None) -> None:
    from kb_server.hosting.toolset_server import combine, hosted
    from mcp_aiohttp.transport.stdio import serve_stdio

    log.info("Starting on stdio", extra={"toolsets": names})
    async with AsyncExitStack() as parts:
        engine = None
        if engine_command is not None and _ON_ENGINE.intersection(names):
            from kb_server.own_engine import OwnEngine

            engine = await parts.enter_async_context(OwnEngine(settings, engine_command))
        services = await parts.enter_async_context(Services(settings, engine=engine))
        await serve_stdio(hosted(combine([build_toolset(name, services) for name in names])))
