"""Takes in what was accepted: reads it, cuts it into passages, stores it, one job after another."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path

from .database import Database, Row
from .documents import Documents
from .jobs import Jobs
from .texts import TYPES, Passage, Section, Unreadable, first_line, format_of, passages, read


class Intake:
    """The one worker; `news` is told of every job that has ended, and tells of those that were accepted."""

    def __init__(self, database: Database, jobs: Jobs, documents: Documents, news: asyncio.Condition) -> None:
        self._database, self._jobs, self._documents, self._news = database, jobs, documents, news

    async def work(self) -> None:
        """Take in what was accepted, one after another, for ever."""
        while True:
            taken = self._jobs.take()
            if taken is None:
                async with self._news:
                    await self._news.wait()
                continue
            await self._take_in(*taken)
            async with self._news:
                self._news.notify_all()

    async def _take_in(self, told: Row, request: Row) -> None:
        spooled = Path(request["spooled"])
        try:
            if request["kind"] == "note":
                made, sections = note(request["text"]), [Section(request["text"])]
            else:
                made, sections = await asyncio.to_thread(_read_file, spooled, request)
            self._commit(told, request, made, await asyncio.to_thread(passages, sections))
        except Unreadable as error:
            # Its file stays, so that it can be tried again.
            error_told = {"code": error.code, "message": str(error)}
            self._jobs.end(told, "failed", error=error_told, retryable=True)
            return
        if request["kind"] == "file":
            spooled.unlink(missing_ok=True)

    def _commit(self, told: Row, request: Row, made: Row, chunks: Sequence[Passage]) -> None:
        """Store what a job has made, and close it, at once; nothing of a job that was cancelled."""
        with self._database.transaction():
            if self._jobs.one(told["id"])["status"] != "running":
                return
            twin = self._documents.twin(request["kind"], made["sha256"], request["dedup_scope"])
            number = self._documents.add(request, made, chunks) if twin is None else twin
            self._documents.unite(number, request)
            self._jobs.end(
                told, "completed", document_id=number, document_uid=self._documents.one(number)["uid"],
                deduplicated=twin is not None, progress=1.0, completed_steps=1,
            )  # fmt: skip


def note(text: str) -> Row:
    """What there is to know of a note."""
    data = text.encode()
    return {
        "sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "title": first_line(text),
        "doc_type": "note", "format": None, "pages": None,
    }  # fmt: skip


def _read_file(path: Path, request: Row) -> tuple[Row, list[Section]]:
    if request.get("force_ocr") == "true":
        raise Unreadable("ocr_failed", "This engine only reads the text that a PDF holds.")
    data, kind = path.read_bytes(), format_of(request["filename"]) or ""
    found = read(data, kind)
    made = {
        "sha256": request["sha256"], "size": len(data), "title": found.title or request["filename"],
        "doc_type": TYPES[kind], "format": kind, "pages": found.pages,
    }  # fmt: skip
    return made, found.sections
