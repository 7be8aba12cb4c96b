"""The base in SQLite: documents, passages, an index of words, vectors, jobs, answers given under a key."""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from operator import mul
from pathlib import Path
from typing import Any
from uuid import uuid4

from .promise import MAX_INTEGER, Refused
from .texts import DIMENSIONS, Passage, vector, words

WEIGHT, SATURATION, FLOOR = 0.4, 2.0, 0.25
ENDED = ("completed", "failed", "cancelled")
Row = dict[str, Any]

_TABLES = """
CREATE TABLE IF NOT EXISTS documents (
  id INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT UNIQUE, kind TEXT, title TEXT, titled INTEGER, doc_type TEXT,
  format TEXT, filename TEXT, size_bytes INTEGER, sha256 TEXT, scope TEXT, metadata TEXT, pages INTEGER,
  version INTEGER, created_at TEXT, updated_at TEXT);
CREATE TABLE IF NOT EXISTS sources (document INTEGER, path TEXT, PRIMARY KEY (document, path));
CREATE TABLE IF NOT EXISTS tags (document INTEGER, tag TEXT, PRIMARY KEY (document, tag));
CREATE TABLE IF NOT EXISTS chunks (
  id INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT, document INTEGER, place INTEGER, text TEXT, page INTEGER,
  heading TEXT, first INTEGER, beyond INTEGER, length INTEGER, vector BLOB);
CREATE TABLE IF NOT EXISTS postings (word TEXT, chunk INTEGER, times INTEGER, PRIMARY KEY (word, chunk))
  WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS chunks_of ON chunks (document);
CREATE INDEX IF NOT EXISTS postings_of ON postings (chunk);
CREATE TABLE IF NOT EXISTS jobs (
  number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, status TEXT, attempts INTEGER, request TEXT,
  answer TEXT);
CREATE TABLE IF NOT EXISTS answers (name TEXT PRIMARY KEY, request TEXT, status INTEGER, body TEXT);
CREATE TABLE IF NOT EXISTS changes (one INTEGER PRIMARY KEY CHECK (one = 1), at TEXT);
"""


class Base:
    """One SQLite file, used by one thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spool = folder / "arrived"
        self.spool.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(folder / "foreign.db", isolation_level=None)
        self._db.row_factory = sqlite3.Row
        self._db.executescript(f"PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; {_TABLES}")
        self._last = ""
        self._db.execute("UPDATE jobs SET status = 'queued' WHERE status = 'running'")

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def now(self) -> str:
        """The time, later than every time told before."""
        told = datetime.now(UTC)
        if self._last:
            told = max(told, datetime.fromisoformat(self._last) + timedelta(microseconds=1))
        self._last = told.isoformat(timespec="microseconds").replace("+00:00", "Z")
        return self._last

    def rows(self, sql: str, *values: object) -> list[Row]:
        """What a query finds."""
        return [dict(row) for row in self._db.execute(sql, values)]

    def row(self, sql: str, *values: object) -> Row | None:
        """The first that a query finds."""
        return next(iter(self.rows(sql, *values)), None)

    def count(self, sql: str, *values: object) -> int:
        """The one number that a query answers."""
        return int(self._db.execute(sql, values).fetchone()[0] or 0)

    def _changed(self, when: str) -> None:
        self._db.execute("INSERT INTO changes VALUES (1, ?1) ON CONFLICT DO UPDATE SET at = ?1", (when,))

    # --- answers given under a key --------------------------------------------------------------

    def answered(self, name: str) -> Row | None:
        """The answer that was given under a key."""
        return self.row("SELECT * FROM answers WHERE name = ?", name)

    def keep_answer(self, name: str, request: str, status: int, body: str) -> None:
        """Remember an answer, in the transaction of what it tells."""
        self._db.execute("INSERT INTO answers VALUES (?, ?, ?, ?)", (name, request, status, body))

    # --- jobs -----------------------------------------------------------------------------------

    def add_job(self, request: Row) -> Row:
        """Accept a job."""
        told = {
            "id": str(uuid4()), "status": "queued", "kind": request["kind"],
            "title": request["title"] or request["filename"] or first_line(request["text"]),
            "filename": request["filename"], "tags": request["tags"], "step": "waiting", "progress": 0.0,
            "completed_steps": 0, "total_steps": 1, "attempts": 0, "document_id": None,
            "document_uid": None, "deduplicated": False, "error": None, "created_at": self.now(),
            "started_at": None, "finished_at": None,
        }  # fmt: skip
        self._db.execute(
            "INSERT INTO jobs (id, status, attempts, request, answer) VALUES (?, 'queued', 0, ?, ?)",
            (told["id"], json.dumps(request), json.dumps(told)),
        )
        return told

    def job(self, job_id: str) -> Row:
        """A job as it is told.

        Raises:
            Refused: there is none.
        """
        found = self.row("SELECT status, answer FROM jobs WHERE id = ?", job_id)
        if found is None:
            raise Refused("job_not_found", "There is no such job.")
        return {**json.loads(found["answer"]), "status": found["status"]}

    def jobs(self, query: Mapping[str, Any]) -> Row:
        """A page of jobs, newest first."""
        status = query.get("status")
        where, values = ("WHERE status = ?", (status,)) if status else ("", ())
        found = self.rows(
            f"SELECT status, answer FROM jobs {where} ORDER BY number DESC LIMIT ? OFFSET ?",
            *values, query["limit"], query["offset"],
        )  # fmt: skip
        listed = [{**json.loads(row["answer"]), "status": row["status"]} for row in found]
        total = self.count(f"SELECT count(*) FROM jobs {where}", *values)
        return {"jobs": listed, "total": total, "limit": query["limit"], "offset": query["offset"]}

    def take_job(self) -> tuple[Row, Row] | None:
        """The oldest job that waits, now running, with what it asks."""
        found = self.row("SELECT * FROM jobs WHERE status = 'queued' ORDER BY number LIMIT 1")
        if found is None:
            return None
        told = json.loads(found["answer"])
        told |= {"step": "reading", "attempts": told["attempts"] + 1, "started_at": self.now()}
        self._tell(told, "running")
        return told, json.loads(found["request"])

    def _tell(self, told: Row, status: str) -> None:
        self._db.execute(
            "UPDATE jobs SET status = ?, answer = ? WHERE id = ?", (status, json.dumps(told), told["id"])
        )

    def end_job(self, told: Row, status: str, **more: Any) -> None:
        """Close a job that still runs; one that was cancelled stays so."""
        if self.job(told["id"])["status"] == "running":
            self._tell(told | {"finished_at": self.now(), "step": status, **more}, status)

    def cancel(self, job_id: str) -> Row:
        """Cancel a job that has not ended."""
        told = self.job(job_id)
        if told["status"] in ENDED:
            raise Refused("job_finished", "The job has ended.")
        told |= {"status": "cancelled", "step": "cancelled", "finished_at": self.now()}
        self._tell(told, "cancelled")
        return told

    # --- documents ------------------------------------------------------------------------------

    def commit(self, told: Row, request: Row, made: Row, chunks: Sequence[Passage]) -> None:
        """Store what a job has made, and close it, at once; nothing of a job that was cancelled."""
        with self.transaction():
            if self.job(told["id"])["status"] != "running":
                return
            twin = self.row(
                "SELECT id FROM documents WHERE kind = ? AND sha256 = ? AND scope = ?",
                request["kind"], made["sha256"], request["dedup_scope"],
            )  # fmt: skip
            number = twin["id"] if twin else self._insert(request, made, chunks)
            self._unite(number, request)
            document = self.document(number)
            self.end_job(
                told, "completed", document_id=number, document_uid=document["uid"],
                deduplicated=twin is not None, progress=1.0, completed_steps=1,
            )  # fmt: skip

    def _insert(self, request: Row, made: Row, chunks: Sequence[Passage]) -> int:
        when = self.now()
        title = (request["title"] or made["title"])[:500]
        placed = self._db.execute(
            "INSERT INTO documents (uid, kind, title, titled, doc_type, format, filename, size_bytes, "
            "sha256, scope, metadata, pages, version, created_at, updated_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?)",
            (
                str(uuid4()), request["kind"], title, request["title"] is not None, made["doc_type"],
                made["format"], request["filename"], made["size"], made["sha256"], request["dedup_scope"],
                json.dumps(request["metadata"]), made["pages"], when, when,
            ),
        )  # fmt: skip
        number = int(placed.lastrowid or 0)
        self._index(number, chunks)
        self._changed(when)
        return number

    def _unite(self, number: int, request: Row) -> None:
        before = self._db.total_changes
        if request["source_path"]:
            self._db.execute("INSERT OR IGNORE INTO sources VALUES (?, ?)", (number, request["source_path"]))
        for tag in request["tags"]:
            self._db.execute("INSERT OR IGNORE INTO tags VALUES (?, ?)", (number, tag))
        if self._db.total_changes > before:
            self._changed(self._last)

    def _index(self, number: int, chunks: Sequence[Passage]) -> None:
        self._forget(number)
        for place, each in enumerate(chunks):
            counted = words(each.text)
            added = self._db.execute(
                "INSERT INTO chunks (uid, document, place, text, page, heading, first, beyond, length, "
                "vector) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    str(uuid4()), number, place, each.text, each.page, each.heading, each.start, each.end,
                    counted.total(), array("f", vector(each.text)).tobytes(),
                ),
            )  # fmt: skip
            self._db.executemany(
                "INSERT INTO postings VALUES (?, ?, ?)",
                [(word, added.lastrowid, times) for word, times in counted.items()],
            )

    def _forget(self, number: int) -> None:
        self._db.execute(
            "DELETE FROM postings WHERE chunk IN (SELECT id FROM chunks WHERE document = ?)", (number,)
        )
        self._db.execute("DELETE FROM chunks WHERE document = ?", (number,))

    def number_of(self, key: str) -> int:
        """The number of a document, by number or uid.

        Raises:
            Refused: there is none.
        """
        column, value = ("id", int(key)) if key.isdecimal() else ("uid", key)
        found = None
        if not (isinstance(value, int) and value > MAX_INTEGER):
            found = self.row(f"SELECT id FROM documents WHERE {column} = ?", value)
        if found is None:
            raise Refused("document_not_found", "There is no such document.")
        return int(found["id"])

    def document(self, number: int) -> Row:
        """A document as it is told, without its chunks."""
        row = self.row("SELECT * FROM documents WHERE id = ?", number)
        assert row is not None
        sources = [
            each["path"]
            for each in self.rows("SELECT path FROM sources WHERE document = ? ORDER BY rowid", number)
        ]
        tags = [
            each["tag"] for each in self.rows("SELECT tag FROM tags WHERE document = ? ORDER BY tag", number)
        ]
        chunks = self.count("SELECT count(*) FROM chunks WHERE document = ?", number)
        left = {name: value for name, value in row.items() if name not in {"kind", "titled", "scope"}}
        return left | {
            "metadata": json.loads(row["metadata"]), "tags": tags, "source_paths": sources,
            "source_path": sources[0] if sources else None, "chunk_count": chunks,
            "status": "searchable" if chunks else "empty",
            "status_reason": None if chunks else "No text was found in it.", "extraction_method": "foreign",
        }  # fmt: skip

    def chunks(self, number: int, offset: int = 0, limit: int = -1) -> list[Row]:
        """The chunks of a document in order."""
        found = self.rows(
            "SELECT * FROM chunks WHERE document = ? ORDER BY place LIMIT ? OFFSET ?", number, limit, offset
        )
        return [chunk_of(row) for row in found]

    def documents(self, query: Mapping[str, Any]) -> Row:
        """A page of documents."""
        conditions = {
            "source_path": "id IN (SELECT document FROM sources WHERE path = ?)",
            "tag": "id IN (SELECT document FROM tags WHERE tag = ?)",
            "doc_type": "doc_type = ?",
        }
        chosen = {name: sql for name, sql in conditions.items() if query.get(name) is not None}
        where = " AND ".join(chosen.values()) or "1"
        values = [query[name] for name in chosen]
        order = f"{query['sort_by']} {query['sort_order']}, id {query['sort_order']}"
        found = self.rows(
            f"SELECT id FROM documents WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?",
            *values, query["limit"], query["offset"],
        )  # fmt: skip
        return {
            "documents": [self.document(row["id"]) for row in found],
            "total": self.count(f"SELECT count(*) FROM documents WHERE {where}", *values),
            "limit": query["limit"], "offset": query["offset"],
        }  # fmt: skip

    def remove(self, numbers: Sequence[int]) -> Row:
        """Remove documents; what went."""
        gone = {"documents": 0, "chunks": 0, "bytes": 0, "jobs_cancelled": 0}
        for number in numbers:
            document = self.document(number)
            gone["documents"] += 1
            gone["chunks"] += document["chunk_count"]
            gone["bytes"] += document["size_bytes"]
            self._forget(number)
            for table in ("tags", "sources"):
                self._db.execute(f"DELETE FROM {table} WHERE document = ?", (number,))
            self._db.execute("DELETE FROM documents WHERE id = ?", (number,))
        self._changed(self.now())
        return gone

    def clear(self) -> Row:
        """Remove everything, and cancel what was accepted before."""
        waiting = self.rows("SELECT id FROM jobs WHERE status IN ('queued', 'running')")
        for job in waiting:
            self.cancel(job["id"])
        gone = self.remove([row["id"] for row in self.rows("SELECT id FROM documents")])
        return gone | {"jobs_cancelled": len(waiting)}

    def expect(self, number: int, version: int | None) -> None:
        """Let a change pass that knows the current version.

        Raises:
            Refused: it knows another one.
        """
        current = self.count("SELECT version FROM documents WHERE id = ?", number)
        if version is not None and version != current:
            raise Refused(
                "version_conflict", "The document has changed; read it again.", current_version=current
            )

    def rewrite(self, number: int, title: str | None, made: Row | None, chunks: Sequence[Passage]) -> None:
        """Give a note another text, title, or both."""
        if made is not None:
            titled = self.count("SELECT titled FROM documents WHERE id = ?", number)
            title = title or (None if titled else made["title"][:500])
            self._db.execute(
                "UPDATE documents SET sha256 = ?, size_bytes = ? WHERE id = ?",
                (made["sha256"], made["size"], number),
            )
            self._index(number, chunks)
        if title is not None:
            self._db.execute("UPDATE documents SET title = ? WHERE id = ?", (title, number))
        self._raise_version(number)

    def add_tags(self, number: int, tags: Sequence[str]) -> None:
        """Add tags."""
        before = self._db.total_changes
        for tag in tags:
            self._db.execute("INSERT OR IGNORE INTO tags VALUES (?, ?)", (number, tag))
        if self._db.total_changes > before:
            self._raise_version(number)

    def remove_tag(self, number: int, tag: str) -> None:
        """Take a tag off.

        Raises:
            Refused: it is not there.
        """
        if not self._db.execute("DELETE FROM tags WHERE document = ? AND tag = ?", (number, tag)).rowcount:
            raise Refused("tag_not_found", "The document does not carry this tag.")
        self._raise_version(number)

    def _raise_version(self, number: int) -> None:
        when = self.now()
        self._db.execute(
            "UPDATE documents SET version = version + 1, updated_at = ? WHERE id = ?", (when, number)
        )
        self._changed(when)

    def tags(self, query: Mapping[str, Any]) -> Row:
        """Tags with their counts."""
        counted = self.rows(
            "SELECT tag, count(DISTINCT t.document) AS documents, count(c.id) AS chunks FROM tags t "
            "LEFT JOIN chunks c ON c.document = t.document GROUP BY tag ORDER BY tag"
        )
        found = [row for row in counted if row["tag"].startswith(query["prefix"])]
        page = found[query["offset"] : query["offset"] + query["limit"]]
        return {"tags": page, "total": len(found), "limit": query["limit"], "offset": query["offset"]}

    # --- search ---------------------------------------------------------------------------------

    def scored(self, query: str, mode: str, numbers: Sequence[int]) -> list[tuple[float, Row, Row]]:
        """All chunks of these documents that match: score, row, explanation; best first."""
        by_words = self._bm25(words(query)) if mode != "vector" else {}
        asked = vector(query) if mode != "fts" else []
        weight = {"fts": 0.0, "vector": 1.0}.get(mode, WEIGHT)
        allowed, found = set(numbers), []
        for row in self.rows("SELECT * FROM chunks"):
            if row["document"] not in allowed:
                continue
            cosine = sum(map(mul, asked, array("f", row["vector"]))) if asked else None
            bm25 = by_words.get(row["id"])
            if bm25 is None and (cosine is None or cosine < FLOOR):
                continue
            near, matched = min(1.0, max(0.0, cosine or 0.0)), bm25 or 0.0
            score = weight * near + (1 - weight) * matched / (matched + SATURATION)
            told = {"cosine": cosine, "bm25": bm25, "weight": weight, "saturation": SATURATION}
            found.append((score, row, told))
        return sorted(found, key=lambda each: (-each[0], each[1]["id"]))

    def _bm25(self, asked: Mapping[str, int]) -> dict[int, float]:
        total = self.count("SELECT count(*) FROM chunks")
        mean = self.count("SELECT sum(length) FROM chunks") / max(1, total)
        scores: dict[int, float] = {}
        for word in asked:
            postings = self.rows(
                "SELECT chunk, times, length FROM postings JOIN chunks ON id = chunk WHERE word = ?", word
            )
            rarity = math.log(1 + (total - len(postings) + 0.5) / (len(postings) + 0.5))
            for row in postings:
                damped = row["times"] + 1.2 * (0.25 + 0.75 * row["length"] / mean)
                scores[row["chunk"]] = scores.get(row["chunk"], 0.0) + rarity * row["times"] * 2.2 / damped
        return scores

    # --- state ----------------------------------------------------------------------------------

    def status(self, started_at: str) -> Row:
        """What `/status` tells."""
        types = self.rows("SELECT doc_type, count(*) AS n FROM documents GROUP BY doc_type")
        states = {
            row["status"]: row["n"]
            for row in self.rows("SELECT status, count(*) AS n FROM jobs GROUP BY status")
        }
        total = self.count("SELECT count(*) FROM documents")
        full = self.count("SELECT count(DISTINCT document) FROM chunks")
        changed = self.row("SELECT at FROM changes")
        return {
            "version": "v3.0.0",
            "model": {"name": "hashed-trigrams", "dimensions": DIMENSIONS, "max_tokens": 256, "loaded": True},
            "device": {"type": "cpu", "threads": 1},
            "documents": {
                "total": total, "searchable": full, "empty": total - full,
                "by_type": {row["doc_type"]: row["n"] for row in types},
            },
            "chunks": self.count("SELECT count(*) FROM chunks"),
            "queue": {name: states.get(name, 0) for name in ("queued", "running", *ENDED)},
            "storage": {
                "path": str(self.folder),
                "bytes": sum(file.stat().st_size for file in self.folder.glob("foreign.db*")),
                "free_bytes": shutil.disk_usage(self.folder).free,
                "originals_bytes": self.count("SELECT sum(size_bytes) FROM documents"),
            },
            "issues": [], "started_at": started_at, "last_updated": changed["at"] if changed else None,
        }  # fmt: skip


def chunk_of(row: Row) -> Row:
    """A chunk as it is told."""
    return {
        "id": row["id"], "uid": row["uid"], "index": row["place"], "text": row["text"], "page": row["page"],
        "heading": row["heading"], "start": row["first"], "end": row["beyond"],
    }  # fmt: skip


def first_line(text: str) -> str:
    """The beginning of a text, for a title."""
    return text.strip().splitlines()[0][:80]
