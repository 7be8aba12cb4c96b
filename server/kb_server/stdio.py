"""kb's MCP server on stdin and stdout; a module of its own, because `app` imports an HTTP server.

A client starts such a server for every conversation, so that each import counts.
"""

from __future__ import annotations

import asyncio
import os

from kb_config.logs import configure_logging
from kb_server.observability.tracing import exporting
from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.toolsets import build_toolset, checked_names


def start(settings: ServerSettings) -> None:
    """Serve until stdin ends.

    Raises:
        SettingsError: a setting cannot be used.
    """
    names = checked_names(settings.toolsets)
    configure_logging(settings.log_level, part="server", secrets=settings.secrets)
    with exporting(os.environ):
        asyncio.run(_serve(settings, names))


async def _serve(settings: ServerSettings, names: list[str]) -> None:
    from kb_server.hosting.toolset_server import combine, hosted
    from mcp_aiohttp.transport.stdio import serve_stdio

    async with Services(settings) as services:
        await serve_stdio(hosted(combine([build_toolset(name, services) for name in names])))
