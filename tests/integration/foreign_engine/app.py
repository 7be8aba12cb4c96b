"""An engine that is not kb's: another program, another store, the same promise.

    python -m foreign_engine.app

keeps its data in `KB_HOME`, listens on port 8000 and wants `KB_API_KEY` where that is set.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from .database import Database, Row
from .documents import Documents
from .endpoint import Endpoint
from .intake import Intake
from .jobs import Jobs
from .operations import Operations
from .promise import Promise
from .requests import Requests

DOCUMENT = Path(__file__).with_name("engine.openapi.yaml")


def application(endpoint: Endpoint, promise: Promise) -> web.Application:
    """The routes of the document, each bound to its operation."""
    app = web.Application(middlewares=[endpoint.gate])
    for (method, path), operation in promise.operations.items():

        async def handle(request: web.Request, operation: Row = operation) -> web.Response:
            return await endpoint.serve(request, operation)

        handle.operation_id = operation["operationId"]  # type: ignore[attr-defined]  # read by the gate
        app.router.add_route(method, path, handle)
    return app


async def main() -> None:
    """Serve until SIGTERM."""
    home = Path(os.environ.get("KB_HOME", "/data"))
    database, promise, news = Database(home), Promise(DOCUMENT), asyncio.Condition()
    jobs, documents = Jobs(database), Documents(database)
    operations = Operations(database, jobs, documents, news)
    requests, key = Requests(promise, home / "arrived"), os.environ.get("KB_API_KEY", "")
    endpoint = Endpoint(database, operations, requests, news, key)
    intake = asyncio.create_task(Intake(database, jobs, documents, news).work())
    await serve_until_stopped(application(endpoint, promise))
    intake.cancel()
    with suppress(asyncio.CancelledError):
        await intake
    database.close()


async def serve_until_stopped(app: web.Application) -> None:
    """Listen on port 8000 until SIGTERM or SIGINT."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=5)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", 8000).start()  # in a container
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
