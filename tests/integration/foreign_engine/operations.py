"""The operations, each a method of its id in snake case."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from .database import Database, Row
from .documents import Documents
from .intake import note
from .jobs import ENDED, Jobs
from .promise import Refused
from .search import Search
from .status import status
from .texts import Section, passages


class Operations:
    """What the engine can be asked; `news` tells of jobs that have ended."""

    def __init__(self, database: Database, jobs: Jobs, documents: Documents, news: asyncio.Condition) -> None:
        self._database, self._jobs, self._documents, self._news = database, jobs, documents, news
        self._search = Search(documents)
        self._started_at = database.now()

    def create_job(self, asked: Row) -> Row:
        """Accept a note or a file."""
        body = asked["body"]
        kind = "file" if "spooled" in body else "note"
        request = {
            "kind": kind,
            "text": "",
            "filename": None,
            **body,
            "tags": list(dict.fromkeys(body["tags"])),
        }
        request["spooled"] = str(body.get("spooled", ""))
        return self._jobs.add(request)

    def list_jobs(self, asked: Row) -> Row:
        """A page of jobs."""
        return self._jobs.page(asked)

    async def get_job(self, asked: Row) -> Row:
        """One job, waited for."""
        with suppress(TimeoutError):
            async with asyncio.timeout(asked["wait"]), self._news:
                await self._news.wait_for(lambda: self._jobs.one(asked["job_id"])["status"] in ENDED)
        return self._jobs.one(asked["job_id"])

    def cancel_job(self, asked: Row) -> Row:
        """Cancel a job."""
        return self._jobs.cancel(asked["job_id"])

    def retry_job(self, asked: Row) -> Row:
        """Queue a failed job again."""
        return self._jobs.retry(asked["job_id"])

    def list_documents(self, asked: Row) -> Row:
        """A page of documents."""
        return self._documents.page(asked)

    def get_document(self, asked: Row) -> Row:
        """One document with a slice of its chunks."""
        number = self._documents.number_of(asked["document_id"])
        offset, limit = asked["chunk_offset"], asked["chunk_limit"]
        chunks = self._documents.chunks.of(number, offset, limit) if asked["chunks"] else []
        told = {"chunks": chunks, "chunk_offset": offset, "chunk_limit": limit}
        return self._documents.one(number) | told

    def delete_document(self, asked: Row) -> Row:
        """Remove one."""
        return self._documents.remove([self._documents.number_of(asked["document_id"])])

    def clear_documents(self, asked: Row) -> Row:
        """Remove all, and cancel what was accepted before."""
        waiting = self._jobs.waiting()
        for job_id in waiting:
            self._jobs.cancel(job_id)
        return self._documents.remove(self._documents.numbers()) | {"jobs_cancelled": len(waiting)}

    def patch_note(self, asked: Row) -> Row:
        """Another text, another title."""
        number, body = self._documents.number_of(str(asked["document_id"])), asked["body"]
        if self._documents.one(number)["doc_type"] != "note":
            raise Refused("not_a_note", "Only notes can be changed in place.")
        self._documents.expect(number, body["expected_version"])
        made = note(body["text"]) if body["text"] is not None else None
        chunks = passages([Section(body["text"])]) if made else []
        self._documents.rewrite(number, body["title"], made, chunks)
        return self._documents.one(number)

    def add_tags(self, asked: Row) -> Row:
        """Tag a document."""
        number = self._documents.number_of(asked["document_id"])
        self._documents.expect(number, asked["version"])
        self._documents.add_tags(number, asked["body"]["tags"])
        return self._documents.one(number)

    def remove_tag(self, asked: Row) -> Row:
        """Take a tag off."""
        number = self._documents.number_of(asked["document_id"])
        self._documents.expect(number, asked["version"])
        self._documents.remove_tag(number, asked["tag"])
        return self._documents.one(number)

    def list_tags(self, asked: Row) -> Row:
        """Tags with counts."""
        return self._documents.tags(asked)

    def get_status(self, asked: Row) -> Row:
        """How the engine is."""
        return status(self._database, self._started_at)

    def get_health(self, asked: Row) -> Row:
        """Alive."""
        return {"status": "ok"}

    def get_readiness(self, asked: Row) -> Row:
        """Ready."""
        return {"status": "ready"}

    def search(self, asked: Row) -> Row:
        """Passages that match."""
        return self._search.answer(asked["body"])
