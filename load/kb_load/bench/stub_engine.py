"""An engine that answers at once with fixed bytes: what a host costs is then what is left.

    python -m kb_load.bench.stub_engine --port 8901

A search is answered with seven results of realistic texts, made by seed; a file is read to its end and
its bytes are counted. Nothing is stored.
"""

from __future__ import annotations

import argparse
import asyncio

import msgspec
import uvloop
from aiohttp import web
from faker import Faker

from kb_contracts.api import models as m

RESULTS = 7
SEED = 7
_TIME = "2026-03-01T09:30:00.000Z"


def search_response() -> m.SearchResponse:
    """What every search is answered with; always the same."""
    faker = Faker("en_GB")
    faker.seed_instance(SEED)
    return m.SearchResponse(
        results=[_result(faker, number) for number in range(1, RESULTS + 1)],
        total=143,
        mode="hybrid",
        took_ms=4.2,
        weak=False,
    )


def _result(faker: Faker, number: int) -> m.SearchResult:
    text = " ".join(faker.sentences(14))
    chunk = m.Chunk(
        id=1000 + number,
        uid=str(faker.uuid4()),
        index=number,
        text=text,
        page=number,
        heading=faker.sentence(4).rstrip("."),
        start=900 * number,
        end=900 * number + len(text),
    )
    document = m.DocumentSummary(
        id=40 + number,
        uid=str(faker.uuid4()),
        title=faker.sentence(5).rstrip("."),
        doc_type="pdf",
        format="pdf",
        filename=faker.file_name(extension="pdf"),
        source_path=faker.file_path(extension="pdf"),
        metadata={"author": faker.name(), "department": faker.job()},
        version=1,
        created_at=_TIME,
        updated_at=_TIME,
    )
    tags = ["collection:documents", faker.word()]
    return m.SearchResult(chunk=chunk, score=round(0.95 - number / 20, 4), document=document, tags=tags)


def build_app() -> web.Application:
    """The application."""
    answer = msgspec.json.encode(search_response())
    status = msgspec.json.encode({"version": "3.0.0"})
    app = web.Application(client_max_size=1 << 20)

    async def search(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=answer, content_type="application/json")

    async def get_status(_request: web.Request) -> web.Response:
        return web.Response(body=status, content_type="application/json")

    async def ready(_request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    app.router.add_post("/api/v1/search", search)
    app.router.add_get("/api/v1/status", get_status)
    app.router.add_get("/readyz", ready)
    app.router.add_post("/api/v1/jobs", _take_file)
    return app


async def _take_file(request: web.Request) -> web.Response:
    size = 0
    async for block in request.content.iter_any():
        size += len(block)
    job = m.Job(
        id="stub", status="queued", kind="file", title="stub", filename="stub.pdf", tags=[], step="queued",
        progress=0.0, completed_steps=0, total_steps=4, attempts=0, document_id=None, document_uid=None,
        deduplicated=False, error=None, created_at=_TIME, started_at=None, finished_at=None,
    )  # fmt: skip
    return web.Response(
        body=msgspec.json.encode(job),
        status=202,
        content_type="application/json",
        headers={"X-Body-Bytes": str(size)},
    )


async def serve(app: web.Application, port: int) -> None:
    """Serve `app` on loopback until the process is ended."""
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(serve(build_app(), parser.parse_args().port))


if __name__ == "__main__":
    main()
