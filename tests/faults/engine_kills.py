"""An engine on either store that is killed again and again, and the documents that it acknowledged."""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx

from tests.faults.engine_process import Running, documents_of, running
from tests.support.eventually import eventually
from tests.support.postgres import Database


class OnSqlite:
    """The files of a killed engine: the database and the spool."""

    def __init__(self, home: Path) -> None:
        self.settings: dict[str, str] = {}
        self._base, self._spool = home / "engine" / "kb.sqlite", home / "engine" / "spool"

    def unfinished(self) -> set[str]:
        with closing(sqlite3.connect(self._base)) as base:
            return {name for (name,) in base.execute("SELECT id FROM jobs WHERE status != 'completed'")}

    def content(self, job_id: str) -> bytes:
        return (self._spool / job_id).read_bytes()

    def add_orphan(self, name: str) -> None:
        (self._spool / name).write_bytes(b"of a request that was never accepted")

    def spooled(self) -> list[str]:
        return [file.name for file in self._spool.iterdir()]


class OnPostgres:
    """The same in a PostgreSQL database."""

    def __init__(self, database: Database) -> None:
        self.settings = {"KB_STORE": database.url, "KB_LEASE_SECONDS": "3"}
        self._database = database

    def unfinished(self) -> set[str]:
        return set(self._values("SELECT id FROM jobs WHERE status != 'completed'"))

    def content(self, job_id: str) -> bytes:
        return b"".join(self._values("SELECT data FROM spool_parts WHERE name = $1 ORDER BY part", job_id))

    def add_orphan(self, name: str) -> None:
        added = "INSERT INTO spool_files (name, touched_at) VALUES ($1, now() - interval '1 day') RETURNING 1"
        self._values(added, name)

    def spooled(self) -> list[str]:
        return self._values("SELECT name FROM spool_files")

    def _values(self, sql: str, *values: object) -> list[Any]:
        rows = asyncio.run(self._database.ask(lambda db: db.fetch(sql, *values)))
        return [row[0] for row in rows]


Place = OnSqlite | OnPostgres


class Kills:
    """An engine that is killed repeatedly, and its accepted submissions. With one worker, so that jobs
    wait.
    """

    def __init__(self, home: Path, place: Place) -> None:
        self.home = home
        self.place = place
        self.settings = {"KB_INGEST_WORKERS": "1", **place.settings}
        self.kills = 0
        self.accepted: dict[str, tuple[str, bytes | None]] = {}
        """By job id: a word that only its document has, and the file's bytes, or None for a note."""

    def during_one_job(self, kills: int) -> None:
        """Kill the engine repeatedly during one job with a large file, which neither fails nor is lost."""
        words = " ".join(f"large{number}" for number in range(60_000))
        job_id = ""
        for _ in range(kills):
            engine = self._start()
            job_id = job_id or self._send_file(engine, "unique0large", words)
            engine.wait_until_begun(job_id, "Generating embeddings")
            self._kill(engine)

    def anywhere(self, seconds: float) -> None:
        engine = self._start()
        number = self.kills
        self._send_file(engine, f"unique{number}file", f"of kill {number} " * 200)
        text = f"unique{number}note of kill {number}"
        job = engine.post("/jobs", json={"text": text, "title": f"note {number}"})
        self.accepted[job["id"]] = (f"unique{number}note", None)
        with ThreadPoolExecutor(1) as pool:  # without an answer it was not accepted
            sent = pool.submit(self._send_file, engine, f"unique{number}late", "word " * 20_000)
            with suppress(TimeoutError):
                sent.exception(timeout=seconds)
            self._kill(engine)
        assert isinstance(sent.exception(), httpx.HTTPError | None)

    def check_the_end(self) -> None:
        """Let it finish: each accepted submission is one document, and the spool is empty."""
        with running(self.home, **self.settings) as engine:
            # A job that was interrupted often is delayed before its next attempt.
            queue = engine.all_ended()
            assert (queue["failed"], queue["cancelled"]) == (0, 0)
            for job_id, (word, _) in self.accepted.items():
                job = engine.get(f"/jobs/{job_id}")
                assert (job["status"], documents_of(engine, word)) == ("completed", [job["document_id"]])
            # On PostgreSQL, unaccepted files are removed after their engine has been silent for a while.
            eventually(self.place.spooled, lambda names: not names, what="an empty spool")

    def _start(self) -> Running:
        engine = Running(self.home, **self.settings)
        for job_id in self.accepted:
            assert engine.get(f"/jobs/{job_id}")["status"] in {"queued", "running", "completed"}
        return engine

    def _kill(self, engine: Running) -> None:
        engine.kill()
        self.kills += 1
        for job_id in self.place.unfinished() & self.accepted.keys():
            if (content := self.accepted[job_id][1]) is not None:
                assert self.place.content(job_id) == content
        self.place.add_orphan(f"orphan{self.kills}")

    def _send_file(self, engine: Running, word: str, text: str) -> str:
        content = f"{word} {text}".encode()
        job = engine.post("/jobs", files={"file": (f"{word}.txt", content)})
        self.accepted[job["id"]] = (word, content)
        return str(job["id"])
