"""Serves an application of aiohttp on loopback, in the running loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.support.patience import SILENCE


@asynccontextmanager
async def serving_app(app: web.Application, port: int = 0, **options: Any) -> AsyncIterator[str]:
    """Yield the URL of an application, on a free port unless one is given."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SILENCE, **options)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
