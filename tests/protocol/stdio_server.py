"""A process that serves the fake toolset over stdio; what a test starts as a subprocess."""

from __future__ import annotations

import asyncio
import sys

from kb_server.hosting.stdio import serve_stdio
from kb_server.observability import configure_logging
from tests.protocol.fake_toolset import Fake


async def main() -> None:
    """Serve; the lifespan's end is told on stderr, where a test can see it."""
    fake = Fake()
    limit = int(sys.argv[1]) if len(sys.argv) > 1 else 12 * 1024 * 1024
    await serve_stdio(fake.toolset, max_line_bytes=limit)
    print(f"left {fake.left}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    configure_logging("info")
    asyncio.run(main())
