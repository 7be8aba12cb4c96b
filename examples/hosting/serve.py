"""Host the SDK's example server over HTTP and WebSocket: `python -m examples.hosting.serve 3000`."""

import asyncio
import sys

from examples.hosting.everything_server import mcp
from mcp_aiohttp.protocol.kernel import HostedServer
from mcp_aiohttp.transport.http import build_app, serve

if __name__ == "__main__":
    app = build_app({"/mcp": HostedServer(mcp)})
    asyncio.run(serve(app, "127.0.0.1", int(sys.argv[1])))
