"""A process that serves the fake toolset over stdio, started by tests.

Its argument is the limit on a line in bytes, or `print`, which makes the echo tool print although tools must
not.
"""

from __future__ import annotations

import asyncio
import logging
import sys

from kb_config.logs import configure_logging
from kb_server.hosting.toolset_server import hosted
from kb_server.tool import Call
from mcp_aiohttp.options import MAX_MESSAGE_BYTES
from mcp_aiohttp.transport.stdio import serve_stdio
from tests.support.fake_toolset import EchoArguments, EchoResult, EchoTool, Fake


class PrintingTool(EchoTool):
    async def run(self, arguments: EchoArguments, call: Call) -> EchoResult:
        print("printed by accident", flush=True)
        return await super().run(arguments, call)


async def main(argument: str) -> None:
    """Serve, and log the end of the lifespan, so that a test can see it."""
    fake = Fake(echo=PrintingTool()) if argument == "print" else Fake()
    limit = int(argument) if argument.isdigit() else MAX_MESSAGE_BYTES
    await serve_stdio(hosted(fake.toolset), max_line_bytes=limit)
    logging.getLogger(__name__).info("left %d", fake.left)


if __name__ == "__main__":
    configure_logging("info", part="server")
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else ""))
