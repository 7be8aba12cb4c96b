"""The typical steps of an agent with kb, through the official MCP client.

Start kb (`make run`), then in another terminal:

    .venv/bin/python examples/first_steps.py

Options select another server, its key, or another file with a sentence from it.
At the end it removes the added notes and documents, with `kb_delete` at the endpoint of kb-extra;
--keep leaves them and prints their ids.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

DOCUMENTS = Path(__file__).parent / "documents"
SENTENCE = "Ground limestone raises the pH and elemental sulphur lowers it."
CHUNK_BYTES = 1024 * 1024


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:3000/mcp", help="the MCP endpoint")
    parser.add_argument("--api-key", default="", help="the server's KB_MCP_API_KEY, where it has one")
    parser.add_argument("--file", type=Path, default=DOCUMENTS / "garden-soil.pdf", help="a file to upload")
    parser.add_argument("--sentence", default=SENTENCE, help="a sentence of that file")
    parser.add_argument(
        "--curl-file", type=Path, default=DOCUMENTS / "honey-bees.docx", help="sent by curl -g -T"
    )
    parser.add_argument("--keep", action="store_true", help="leave what was added")
    parser.add_argument("--mode", default="auto", help="auto, legacy (the handshake) or 2026-07-28")
    return parser.parse_args()


class StepFailedError(Exception):
    """A step failed; the message says which one and how."""


class Agent:
    """An MCP client that fails loudly and shows each step."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.added: set[int] = set()
        """Documents that did not exist before."""

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return the structured result of a tool; a tool error ends the script with its message."""
        result = await self._client.call_tool(tool, arguments)
        if result.is_error or result.structured_content is None:
            raise StepFailedError(f"{tool} failed: {getattr(result.content[0], 'text', result.content)}")
        return dict(result.structured_content)

    async def add_note(self, text: str, collection: str) -> dict[str, Any]:
        """Add a note and wait until it is searchable."""
        job = await self.call("kb_addnote", text=text, collection=collection, wait_seconds=50)
        check(job["status"] == "completed", f"note in {collection}: job {job['job_id']} {job['status']}")
        self._remember(job)
        return job

    async def wait_for(self, job_id: str) -> dict[str, Any]:
        """Wait until a job has ended, and return it."""
        while True:
            jobs = (await self.call("kb_jobs", job_id=job_id, wait_seconds=20))["jobs"]
            if jobs[0]["status"] not in {"queued", "running"}:
                self._remember(jobs[0])
                return dict(jobs[0])
            print(f"    {jobs[0]['step']} {jobs[0]['progress']:.0%}")

    def _remember(self, job: dict[str, Any]) -> None:
        if job["document_id"] is not None and not job["deduplicated"]:
            self.added.add(job["document_id"])

    async def ids_found(self, query: str, collection: str) -> list[int]:
        """Return the documents found by a search in one collection, best first."""
        found = await self.call("kb_search", query=query, collection=collection, top=5)
        return [result["document_id"] for result in found["results"]]


def check(holds: bool, what: str) -> None:
    """Print a result; end the script if it is wrong."""
    if not holds:
        raise StepFailedError(f"this does not hold: {what}")
    print(f"  ok: {what}")


async def upload_in_chunks(agent: Agent, file: Path, collection: str) -> str:
    """Upload by kb_upload_start, kb_upload_chunk for each mebibyte and kb_upload_finish.

    Return the job's id.
    """
    data = file.read_bytes()
    start = await agent.call(
        "kb_upload_start",
        filename=file.name,
        total_size=len(data),
        collection=collection,
        sha256=hashlib.sha256(data).hexdigest(),
    )
    chunks = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
    for index, chunk in enumerate(chunks):
        await agent.call(
            "kb_upload_chunk",
            upload_id=start["upload_id"],
            chunk_index=index,
            data=base64.b64encode(chunk).decode(),
        )
    print(f"  {file.name}: {len(data):,} bytes in {len(chunks)} chunks")
    finish = await agent.call("kb_upload_finish", upload_id=start["upload_id"])
    return str(finish["job_id"])


async def upload_with_curl(agent: Agent, file: Path, collection: str) -> str:
    """Upload as an agent with a shell does, without base64 in its context; return the job's id."""
    start = await agent.call(
        "kb_upload_start", filename=file.name, total_size=file.stat().st_size, collection=collection
    )
    curl = shutil.which("curl")
    if curl is None:
        raise StepFailedError("this step needs curl")
    process = await asyncio.create_subprocess_exec(
        curl,
        "--fail",
        "--silent",
        "--show-error",
        "--output",
        "/dev/null",
        "-g",
        "-T",
        str(file),
        start["upload_url"],
    )
    check(await process.wait() == 0, f"curl -g -T {file.name} $UPLOAD_URL")
    finish = await agent.call("kb_upload_finish", upload_id=start["upload_id"])
    return str(finish["job_id"])


async def documents(agent: Agent, options: argparse.Namespace) -> None:
    """Files: upload in chunks and by curl, then find a sentence with its page."""
    print("Upload a file in chunks")
    job = await agent.wait_for(await upload_in_chunks(agent, options.file, "documents"))
    check(job["status"] == "completed", f"job {job['id']} completed, document {job['document_id']}")
    found = await agent.call("kb_search", query=options.sentence, collection="documents", top=5)
    best = found["results"][0]
    check(best["document_id"] == job["document_id"], f"“{options.sentence}” is in {best['title']!r}")
    check(
        options.sentence in " ".join(best["text"].split()),
        f"on page {best['page']}, score {best['score']:.2f}",
    )
    print("Upload a file with curl")
    job = await agent.wait_for(await upload_with_curl(agent, options.curl_file, "documents"))
    check(job["status"] == "completed", f"job {job['id']} completed, document {job['document_id']}")


async def notes(agent: Agent) -> None:
    """Notes: separate collections, updates in place, deduplication, moves."""
    topic = f"concise answers {uuid4().hex[:8]}"
    text = f"The user prefers {topic}."
    print("Remember a note")
    added = await agent.add_note(text, "memory")
    note_id = added["document_id"]
    check(note_id in await agent.ids_found(topic, "memory"), f"note {note_id} is found in memory")
    check(note_id not in await agent.ids_found(topic, "documents"), "and not in documents")

    print("Update it in place")
    before = await agent.call("kb_get", document_id=note_id)
    after = await agent.call("kb_update_note", document_id=note_id, text=f"{text} Bullet points, too.")
    check(
        (after["id"], after["created_at"]) == (before["id"], before["created_at"])
        and after["updated_at"] > before["updated_at"],
        f"note {note_id} keeps its id and created_at {after['created_at']}",
    )

    print("The same text twice is one document, in another collection a second")
    other = f"The office is closed on {uuid4().hex[:8]} day."
    first, again = await agent.add_note(other, "memory"), await agent.add_note(other, "memory")
    check(
        first["document_id"] == again["document_id"] and again["deduplicated"],
        "twice in memory: one document",
    )
    elsewhere = await agent.add_note(other, "workspace")
    check(elsewhere["document_id"] != first["document_id"], "in workspace: another document")

    print("Move a note to another collection")
    moved = await agent.call("kb_update_note", document_id=note_id, text=text, collection="workspace")
    check(moved["collection"] == "workspace", f"note {note_id} is in workspace")
    check(note_id not in await agent.ids_found(topic, "memory"), "and no longer in memory")


@asynccontextmanager
async def connected(options: argparse.Namespace, path: str = "") -> AsyncIterator[Client]:
    """Yield a client of the endpoint, or of the toolset at a path below it."""
    headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=90) as http,
        Client(streamable_http_client(options.url + path, http_client=http), mode=options.mode) as client,
    ):
        yield client


async def steps(options: argparse.Namespace) -> None:
    """Connect, list the tools, run the steps, and remove the added documents."""
    async with connected(options) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        check("kb_search" in tools, f"{len(tools)} tools: {', '.join(tools)}")
        agent = Agent(client)
        try:
            await documents(agent, options)
            await notes(agent)
        finally:
            if not options.keep:
                await remove(agent.added, options)
    print("All steps done.")


async def remove(document_ids: set[int], options: argparse.Namespace) -> None:
    """Remove the documents with their history."""
    print("Remove what was added")
    async with connected(options, "/kb-extra") as client:
        agent = Agent(client)
        for document_id in sorted(document_ids):
            await agent.call("kb_delete", document_id=document_id, purge=True)
    print(f"  {len(document_ids)} documents are removed")


def main() -> None:
    """Run the steps; an error is printed in one line."""
    try:
        asyncio.run(steps(parse()))
    except* (StepFailedError, MCPError, httpx2.HTTPError) as failed:
        raise SystemExit(f"first_steps: {_first(failed)}") from None


def _first(group: BaseException) -> BaseException:
    """Return the innermost exception of the groups in which the client's tasks wrap it."""
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


if __name__ == "__main__":
    main()
