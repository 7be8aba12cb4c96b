"""The ceiling of uploads: bare handlers that do the same decoding and writing, and nothing else.

    python -m kb_load.bench.bare_uploads --port 8903 --folder /tmp/uploads

`POST /chunk` takes the same message as `kb_upload_chunk`: parsed and decoded with the libraries of this
server, written to a file of its own aside and renamed; both in a thread, as a server must whose other
callers wait. `PUT /direct` streams the body to a file in the same way, in blocks of a MiB. `DELETE /files`
removes what came: replacing a large file takes the time of freeing it.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

import msgspec
import pybase64
import uvloop
from aiohttp import web

from kb_load.bench.stub_engine import serve

BLOCK_BYTES = 1 << 20
_READ_BYTES = 1 << 18
MAX_MESSAGE_BYTES = 12 * BLOCK_BYTES


class _Arguments(msgspec.Struct):
    upload_id: str
    chunk_index: int
    data: str


class _Params(msgspec.Struct):
    arguments: _Arguments


class _Message(msgspec.Struct):
    id: int
    params: _Params


def build_app(folder: Path) -> web.Application:
    """The application; files end up in `folder`, which holds nothing else."""
    decoder = msgspec.json.Decoder(_Message)

    async def chunk(request: web.Request) -> web.Response:
        message = decoder.decode(await request.read())
        arguments = message.params.arguments
        size = await asyncio.to_thread(_store, folder, arguments.chunk_index, arguments.data)
        found = {"chunk_index": arguments.chunk_index, "received_bytes": size}
        text = msgspec.json.encode(found).decode()
        result = {"content": [{"type": "text", "text": text}], "structuredContent": found, "isError": False}
        answer = {"jsonrpc": "2.0", "id": message.id, "result": result}
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

    async def direct(request: web.Request) -> web.Response:
        temporary = folder / f"aside-{uuid4().hex}"
        size = 0
        with temporary.open("wb", buffering=0) as file:
            waiting = bytearray()
            async for block in request.content.iter_chunked(_READ_BYTES):
                waiting += block
                size += len(block)
                if len(waiting) >= BLOCK_BYTES:
                    await asyncio.to_thread(_append, file, bytes(waiting))
                    waiting.clear()
            await asyncio.to_thread(_append, file, bytes(waiting))
        temporary.replace(folder / "direct")
        return web.json_response({"received_bytes": size}, status=201)

    async def remove(_request: web.Request) -> web.Response:
        for path in folder.glob("*"):
            path.unlink()
        return web.Response(status=204)

    app = web.Application(client_max_size=MAX_MESSAGE_BYTES)
    app.router.add_post("/chunk", chunk)
    app.router.add_put("/direct", direct)
    app.router.add_delete("/files", remove)
    return app


def _store(folder: Path, index: int, data: str) -> int:
    decoded = pybase64.b64decode(data, validate=True)
    temporary = folder / f"aside-{uuid4().hex}"
    temporary.write_bytes(decoded)
    temporary.replace(folder / f"chunk-{index}")
    return len(decoded)


def _append(file: BinaryIO, block: bytes) -> None:
    file.write(block)


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    uvloop.run(serve(build_app(options.folder), options.port))


if __name__ == "__main__":
    main()
