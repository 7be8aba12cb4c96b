"""One SQLite file: documents with their tags, sources and chunks, jobs, and the answers of idempotency keys.

Chunks have an index of their words and their vectors, from which their scores are computed.
"""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from operator import mul
from pathlib import Path
from typing import Any
from uuid import uuid4

from .promise import MAX_INTEGER, Refused
from .texts import DIMENSIONS, Passage, first_line, vector, words

Row = dict[str, Any]

_TABLES = """
CREATE TABLE IF NOT EXISTS documents (
  id INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT UNIQUE, kind TEXT, title TEXT, titled INTEGER, doc_type TEXT,
  format TEXT, filename TEXT, size_bytes INTEGER, sha256 TEXT, scope TEXT, metadata TEXT, pages INTEGER,
  version INTEGER, created_at TEXT, updated_at TEXT, unsourced INTEGER DEFAULT 0, note TEXT,
  same TEXT);
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
CREATE TABLE IF NOT EXISTS voices (
  document INTEGER, voice TEXT, opened INTEGER DEFAULT 0, rating INTEGER DEFAULT 0,
  PRIMARY KEY (document, voice));
CREATE TABLE IF NOT EXISTS changes (one INTEGER PRIMARY KEY CHECK (one = 1), at TEXT);
"""


class Database:
    """One SQLite file, used by one thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(folder / "foreign.db", isolation_level=None)
        self._db.row_factory = sqlite3.Row
        self._db.executescript(f"PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; {_TABLES}")
        self._last = ""

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def now(self) -> str:
        """Return the time, always later than every time returned before."""
        moment = datetime.now(UTC)
        if self._last:
            moment = max(moment, datetime.fromisoformat(self._last) + timedelta(microseconds=1))
        self._last = moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
        return self._last

    @property
    def last(self) -> str:
        return self._last

    @property
    def writes(self) -> int:
        """Number of rows written since the file was opened."""
        return self._db.total_changes

    def execute(self, sql: str, *values: object) -> sqlite3.Cursor:
        return self._db.execute(sql, values)

    def rows(self, sql: str, *values: object) -> list[Row]:
        return [dict(row) for row in self._db.execute(sql, values)]

    def row(self, sql: str, *values: object) -> Row | None:
        return next(iter(self.rows(sql, *values)), None)

    def count(self, sql: str, *values: object) -> int:
        return int(self._db.execute(sql, values).fetchone()[0] or 0)

    def changed(self, when: str) -> None:
        self._db.execute("INSERT INTO changes VALUES (1, ?1) ON CONFLICT DO UPDATE SET at = ?1", (when,))

    def answered(self, name: str) -> Row | None:
        return self.row("SELECT * FROM answers WHERE name = ?", name)

    def keep_answer(self, name: str, request: str, status: int, body: str) -> None:
        """Store an answer, in the transaction of its change."""
        self._db.execute("INSERT INTO answers VALUES (?, ?, ?, ?)", (name, request, status, body))


WEIGHT, SATURATION, FLOOR = 0.4, 0.5, 0.25


class Chunks:
    """All chunks, by the number of their document."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def replace(self, number: int, chunks: Sequence[Passage]) -> None:
        self.delete(number)
        for place, each in enumerate(chunks):
            counted = words(each.text)
            added = self._db.execute(
                "INSERT INTO chunks (uid, document, place, text, page, heading, first, beyond, length, "
                "vector) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                str(uuid4()), number, place, each.text, each.page, each.heading, each.start, each.end,
                counted.total(), array("f", vector(each.text)).tobytes(),
            )  # fmt: skip
            for word, times in counted.items():
                self._db.execute("INSERT INTO postings VALUES (?, ?, ?)", word, added.lastrowid, times)

    def delete(self, number: int) -> None:
        self._db.execute(
            "DELETE FROM postings WHERE chunk IN (SELECT id FROM chunks WHERE document = ?)", number
        )
        self._db.execute("DELETE FROM chunks WHERE document = ?", number)

    def has(self, chunk: int) -> bool:
        return self._db.count("SELECT count(*) FROM chunks WHERE id = ?", chunk) > 0

    def of(self, number: int, offset: int = 0, limit: int = -1) -> list[Row]:
        found = self._db.rows(
            "SELECT * FROM chunks WHERE document = ? ORDER BY place LIMIT ? OFFSET ?", number, limit, offset
        )
        return [chunk_of(row) for row in found]

    def scored(self, query: str, mode: str, numbers: Sequence[int]) -> list[tuple[float, Row, Row]]:
        """All matching chunks of these documents as score, row and explanation, best first."""
        by_words, reach = self._bm25(words(query)) if mode != "vector" else ({}, 0.0)
        target = vector(query) if mode != "fts" else []
        weight = {"fts": 0.0, "vector": 1.0}.get(mode, WEIGHT)
        saturation = SATURATION * (reach or 1.0)
        allowed, found = set(numbers), []
        for row in self._db.rows("SELECT * FROM chunks"):
            if row["document"] not in allowed:
                continue
            cosine = sum(map(mul, target, array("f", row["vector"]))) if target else None
            bm25 = by_words.get(row["id"])
            if bm25 is None and (cosine is None or cosine < FLOOR):
                continue
            near, matched = min(1.0, max(0.0, cosine or 0.0)), bm25 or 0.0
            score = weight * near + (1 - weight) * matched / (matched + saturation)
            parts = {"cosine": cosine, "bm25": bm25, "weight": weight, "saturation": saturation}
            found.append((score, row, parts))
        return sorted(found, key=lambda each: (-each[0], each[1]["id"]))

    def _bm25(self, query: Mapping[str, int]) -> tuple[dict[int, float], float]:
        """The BM25 scores of matching chunks, and the score of an average chunk with each word once."""
        total = self._db.count("SELECT count(*) FROM chunks")
        mean = self._db.count("SELECT sum(length) FROM chunks") / max(1, total)
        scores: dict[int, float] = {}
        reach = 0.0
        for word in query:
            postings = self._db.rows(
                "SELECT chunk, times, length FROM postings JOIN chunks ON id = chunk WHERE word = ?", word
            )
            rarity = math.log((total + 101) / (len(postings) + 0.5))
            reach += rarity
            for row in postings:
                damped = row["times"] + 1.2 * (0.25 + 0.75 * row["length"] / mean)
                scores[row["chunk"]] = scores.get(row["chunk"], 0.0) + rarity * row["times"] * 2.2 / damped
        return scores, reach


def chunk_of(row: Row) -> Row:
    return {
        "id": row["id"], "uid": row["uid"], "index": row["place"], "text": row["text"], "page": row["page"],
        "heading": row["heading"], "start": row["first"], "end": row["beyond"],
    }  # fmt: skip


_UNSAID = {"kind", "titled", "scope", "unsourced", "note"}


def place(tags: Sequence[str], scope: str) -> str:
    """The collection or scope in which a document's source path is unique."""
    return next((tag for tag in tags if tag.startswith("collection:")), scope)


class Documents:
    def __init__(self, database: Database) -> None:
        self._db = database
        self.chunks = Chunks(database)
        self.before_change: Callable[..., None] = lambda _number, **_: None
        """Called with the number of a document before its content is replaced or it is `removed`."""

    def add(self, request: Row, made: Row, chunks: Sequence[Passage]) -> int:
        when = self._db.now()
        title = (request["title"] or made["title"])[:500]
        placed = self._db.execute(
            "INSERT INTO documents (uid, kind, title, titled, doc_type, format, filename, size_bytes, "
            "sha256, same, scope, metadata, pages, note, version, created_at, updated_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?)",
            str(uuid4()), request["kind"], title, request["title"] is not None, made["doc_type"],
            made["format"], request["filename"], made["size"], made["sha256"], made["same"],
            request["dedup_scope"], json.dumps(request["metadata"]), made["pages"], made.get("note"), when,
            when,
        )  # fmt: skip
        number = int(placed.lastrowid or 0)
        self.chunks.replace(number, chunks)
        self._db.changed(when)
        return number

    def merge(self, number: int, request: Row) -> None:
        """Add the tags and the source of a request to a document."""
        before = self._db.writes
        if request["source_path"]:
            if request["kind"] == "note" and not self.one(number)["source_paths"]:
                self._db.execute("UPDATE documents SET unsourced = 0 WHERE id = ? AND unsourced", number)
            self._db.execute("INSERT OR IGNORE INTO sources VALUES (?, ?)", number, request["source_path"])
        else:
            self._db.execute("UPDATE documents SET unsourced = 1 WHERE id = ? AND NOT unsourced", number)
        present = self.tags_of(number)
        for tag in [tag for tag in request["tags"] if tag not in present][: 64 - len(present)]:
            self._db.execute("INSERT OR IGNORE INTO tags VALUES (?, ?)", number, tag)
        if self._db.writes > before:
            self._db.changed(self._db.last)

    def duplicate(self, kind: str, same: str, scope: str, tags: Sequence[str]) -> int | None:
        """Return the number of a document with the same content, or None."""
        found = self._db.rows(
            "SELECT id FROM documents WHERE kind = ? AND same = ? AND scope = ? ORDER BY id",
            kind, same, scope,
        )  # fmt: skip
        here = [row["id"] for row in found if place(self.tags_of(row["id"]), scope) == place(tags, scope)]
        return here[0] if here else None

    def tags_of(self, number: int) -> list[str]:
        return [row["tag"] for row in self._db.rows("SELECT tag FROM tags WHERE document = ?", number)]

    def pointed_to(self, request: Row) -> list[int]:
        """The numbers of the documents to which the source of a request points."""
        wanted = place(request["tags"], request["dedup_scope"])
        found = self._db.rows(
            "SELECT d.id, d.scope FROM documents d JOIN sources s ON s.document = d.id WHERE s.path = ?",
            request["source_path"],
        )
        return [row["id"] for row in found if place(self.tags_of(row["id"]), row["scope"]) == wanted]

    def is_only(self, number: int, path: str) -> bool:
        """True if this source path is the document's only source."""
        document = self._db.row("SELECT unsourced FROM documents WHERE id = ?", number)
        assert document is not None
        return not document["unsourced"] and self.one(number)["source_paths"] == [path]

    def take_off(self, number: int, path: str) -> Row:
        """Remove a source from a document and return the removed counts.

        Raises:
            Refused: the document does not have this source.
        """
        if path not in self.one(number)["source_paths"]:
            raise Refused("source_not_found", "The document does not come from there.")
        if self.is_only(number, path):
            return self.remove([number])
        self.leave(number, path)
        return self.remove([])

    def leave(self, number: int, path: str) -> None:
        """Remove a source from this document, and the document with its only source."""
        if self.is_only(number, path):
            self.remove([number])
        else:
            self._db.execute("DELETE FROM sources WHERE document = ? AND path = ?", number, path)
            self.raise_version(number)

    def take_over(self, number: int, request: Row, made: Row, chunks: Sequence[Passage]) -> None:
        """Replace the content of a document by a new submission."""
        self.before_change(number)
        self._db.execute(
            "UPDATE documents SET kind = ?, titled = ?, title = ?, doc_type = ?, format = ?, filename = ?, "
            "pages = ?, scope = ?, metadata = CASE ? WHEN '{}' THEN metadata ELSE ? END WHERE id = ?",
            request["kind"], request["title"] is not None, (request["title"] or made["title"])[:500],
            made["doc_type"], made["format"], request["filename"], made["pages"], request["dedup_scope"],
            *[json.dumps(request["metadata"])] * 2, number,
        )  # fmt: skip
        self.rewrite(number, None, {**made, "title": (request["title"] or made["title"])}, chunks)

    def number_of(self, key: str) -> int:
        """Return the number of a document, by number or uid.

        Raises:
            Refused: there is no such document.
        """
        column, value = ("id", int(key)) if key.isdecimal() else ("uid", key)
        found = None
        if not (isinstance(value, int) and value > MAX_INTEGER):
            found = self._db.row(f"SELECT id FROM documents WHERE {column} = ?", value)
        if found is None:
            raise Refused("document_not_found", "There is no such document.")
        return int(found["id"])

    def one(self, number: int) -> Row:
        """A document as in an answer, without its chunks."""
        row = self._db.row("SELECT * FROM documents WHERE id = ?", number)
        assert row is not None
        sources = [
            each["path"]
            for each in self._db.rows("SELECT path FROM sources WHERE document = ? ORDER BY rowid", number)
        ]
        tags = [
            each["tag"]
            for each in self._db.rows("SELECT tag FROM tags WHERE document = ? ORDER BY tag", number)
        ]
        chunks = self._db.count("SELECT count(*) FROM chunks WHERE document = ?", number)
        left = {name: value for name, value in row.items() if name not in _UNSAID}
        return left | {
            "metadata": json.loads(row["metadata"]), "tags": tags, "source_paths": sources,
            "source_path": sources[0] if sources else None, "chunk_count": chunks,
            "status": "searchable" if chunks else "empty",
            "status_reason": None if chunks else "No text was found in it.", "extraction_method": "foreign",
        }  # fmt: skip

    def text(self, number: int) -> str | None:
        row = self._db.row("SELECT note FROM documents WHERE id = ?", number)
        return row["note"] if row else None

    def page(self, query: Mapping[str, Any]) -> Row:
        conditions = {
            "source_path": "id IN (SELECT document FROM sources WHERE path = ?)",
            "source_path_prefix": "id IN (SELECT document FROM sources WHERE instr(path, ?) = 1)",
            "doc_type": "doc_type = ?",
        }
        chosen = [(sql, query[name]) for name, sql in conditions.items() if query.get(name) is not None]
        tags = query["tag"].split(",") if query.get("tag") else []
        chosen += [("id IN (SELECT document FROM tags WHERE tag = ?)", tag) for tag in tags]
        where = " AND ".join(sql for sql, _ in chosen) or "1"
        values = [value for _, value in chosen]
        by, direction = query["sort_by"], query["sort_order"]
        order = f"{'coalesce(filename, title)' if by == 'filename' else by} {direction}, id {direction}"
        found = self._db.rows(
            f"SELECT id FROM documents WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?",
            *values, query["limit"], query["offset"],
        )  # fmt: skip
        return {
            "documents": [self.one(row["id"]) for row in found],
            "total": self._db.count(f"SELECT count(*) FROM documents WHERE {where}", *values),
            "limit": query["limit"], "offset": query["offset"],
        }  # fmt: skip

    def remove(self, numbers: Sequence[int]) -> Row:
        gone = {"documents": 0, "chunks": 0, "bytes": 0, "jobs_cancelled": 0}
        for number in numbers:
            document = self.one(number)
            self.before_change(number, removed=True)
            gone["documents"] += 1
            gone["chunks"] += document["chunk_count"]
            gone["bytes"] += document["size_bytes"]
            self.chunks.delete(number)
            for table in ("tags", "sources", "voices"):
                self._db.execute(f"DELETE FROM {table} WHERE document = ?", number)
            self._db.execute("DELETE FROM documents WHERE id = ?", number)
        self._db.changed(self._db.now())
        return gone

    def numbers(self) -> list[int]:
        return [row["id"] for row in self._db.rows("SELECT id FROM documents")]

    def expect(self, number: int, version: int | None) -> None:
        """Check the version that a change expects.

        Raises:
            Refused: the current version is different.
        """
        current = self._db.count("SELECT version FROM documents WHERE id = ?", number)
        if version is not None and version != current:
            raise Refused(
                "version_conflict", "The document has changed; read it again.", current_version=current
            )

    def holds(self, number: int, title: str | None, made: Row | None) -> bool:
        """True if a note has this title and text, of the given ones."""
        document = self.one(number)
        return title in (None, document["title"]) and (made is None or made["sha256"] == document["sha256"])

    def rewrite(self, number: int, title: str | None, made: Row | None, chunks: Sequence[Passage]) -> None:
        if made is not None:
            titled = self._db.count("SELECT titled FROM documents WHERE id = ?", number)
            title = title or (None if titled else made["title"][:500])
            self._db.execute(
                "UPDATE documents SET sha256 = ?, same = ?, size_bytes = ?, note = ? WHERE id = ?",
                made["sha256"], made["same"], made["size"], made.get("note"), number,
            )  # fmt: skip
            self.chunks.replace(number, chunks)
        if title is not None:
            self._db.execute("UPDATE documents SET title = ? WHERE id = ?", title, number)
        self.raise_version(number)

    def set_metadata(self, number: int, metadata: Row) -> None:
        if metadata != self.one(number)["metadata"]:
            self._db.execute("UPDATE documents SET metadata = ? WHERE id = ?", json.dumps(metadata), number)
            self.raise_version(number)

    def hear(self, number: int, voice: str, signal: str) -> Row:
        """Record a user's feedback on a document, and return the total."""
        self._db.execute("INSERT OR IGNORE INTO voices (document, voice) VALUES (?, ?)", number, voice)
        change = {"useful": "rating = 1", "not_useful": "rating = -1", "clicked": "opened = 1"}[signal]
        self._db.execute(f"UPDATE voices SET {change} WHERE document = ? AND voice = ?", number, voice)
        return self.feedback(number)

    def feedback(self, number: int) -> Row:
        said = self._db.rows("SELECT * FROM voices WHERE document = ?", number)
        counts = {
            "voices": len(said),
            "clicked": sum(each["opened"] or each["rating"] == 1 for each in said),
            "useful": sum(each["rating"] == 1 for each in said),
            "not_useful": sum(each["rating"] == -1 for each in said),
        }
        clicks = counts["clicked"] / (counts["voices"] + 4)
        rating = (counts["useful"] + 2) / (counts["useful"] + counts["not_useful"] + 4)
        return {"document_id": number, **counts, "score": clicks / 2 + rating / 2}

    def add_tags(self, number: int, tags: Sequence[str]) -> None:
        """Add tags.

        Raises:
            Refused: there would be too many.
        """
        present = self.tags_of(number)
        if len({*present, *tags}) > max(64, len(present)):
            raise Refused("invalid_parameter", "A document may have 64 tags.", parameter="tags")
        before = self._db.writes
        for tag in tags:
            self._db.execute("INSERT OR IGNORE INTO tags VALUES (?, ?)", number, tag)
            if tag.startswith("collection:"):
                self._db.execute(
                    "UPDATE documents SET scope = ? WHERE id = ? AND scope LIKE 'collection:%'", tag, number
                )
        if self._db.writes > before:
            self.raise_version(number)

    def remove_tag(self, number: int, tag: str) -> None:
        """Remove a tag.

        Raises:
            Refused: the document does not have it.
        """
        if not self._db.execute("DELETE FROM tags WHERE document = ? AND tag = ?", number, tag).rowcount:
            raise Refused("tag_not_found", "The document does not carry this tag.")
        scope = place(self.tags_of(number), tag)
        self._db.execute("UPDATE documents SET scope = ? WHERE id = ? AND scope = ?", scope, number, tag)
        self.raise_version(number)

    def raise_version(self, number: int) -> None:
        when = self._db.now()
        self._db.execute(
            "UPDATE documents SET version = version + 1, updated_at = ? WHERE id = ?", when, number
        )
        self._db.changed(when)

    def tags(self, query: Mapping[str, Any]) -> Row:
        counted = self._db.rows(
            "SELECT tag, count(DISTINCT t.document) AS documents, count(c.id) AS chunks FROM tags t "
            "LEFT JOIN chunks c ON c.document = t.document GROUP BY tag ORDER BY tag"
        )
        found = [row for row in counted if row["tag"].startswith(query["prefix"])]
        page = found[query["offset"] : query["offset"] + query["limit"]]
        return {"tags": page, "total": len(found), "limit": query["limit"], "offset": query["offset"]}


ENDED = ("completed", "failed", "cancelled")


class Jobs:
    """The jobs of a base; jobs that ran when it was last closed are queued again."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._db.execute("UPDATE jobs SET status = 'queued' WHERE status = 'running'")

    def add(self, request: Row) -> Row:
        job = {
            "id": str(uuid4()), "status": "queued", "kind": request["kind"],
            "title": request["title"] or request["filename"] or first_line(request["text"]),
            "filename": request["filename"], "tags": request["tags"], "step": "waiting", "progress": 0.0,
            "completed_steps": 0, "total_steps": 1, "attempts": 0, "document_id": None,
            "document_uid": None, "deduplicated": False, "error": None, "created_at": self._db.now(),
            "started_at": None, "finished_at": None, "retryable": False, "elapsed_seconds": 0.0,
            "estimated_seconds": None,
        }  # fmt: skip
        self._db.execute(
            "INSERT INTO jobs (id, status, attempts, request, answer) VALUES (?, 'queued', 0, ?, ?)",
            job["id"], json.dumps(request), json.dumps(job),
        )  # fmt: skip
        return job

    def one(self, job_id: str) -> Row:
        """A job as in an answer.

        Raises:
            Refused: there is no such job.
        """
        found = self._db.row("SELECT status, answer FROM jobs WHERE id = ?", job_id)
        if found is None:
            raise Refused("job_not_found", "There is no such job.")
        return {**json.loads(found["answer"]), "status": found["status"]}

    def page(self, query: Mapping[str, Any]) -> Row:
        status = query.get("status")
        where, values = ("WHERE status = ?", (status,)) if status else ("", ())
        found = self._db.rows(
            f"SELECT status, answer FROM jobs {where} ORDER BY number DESC LIMIT ? OFFSET ?",
            *values, query["limit"], query["offset"],
        )  # fmt: skip
        listed = [{**json.loads(row["answer"]), "status": row["status"]} for row in found]
        total = self._db.count(f"SELECT count(*) FROM jobs {where}", *values)
        return {"jobs": listed, "total": total, "limit": query["limit"], "offset": query["offset"]}

    def take(self) -> tuple[Row, Row] | None:
        """Start the oldest waiting job and return it with its request."""
        found = self._db.row("SELECT * FROM jobs WHERE status = 'queued' ORDER BY number LIMIT 1")
        if found is None:
            return None
        job = json.loads(found["answer"])
        job |= {"step": "reading", "attempts": job["attempts"] + 1, "started_at": self._db.now()}
        self._set(job, "running")
        return job, json.loads(found["request"])

    def _set(self, job: Row, status: str) -> None:
        self._db.execute(
            "UPDATE jobs SET status = ?, answer = ? WHERE id = ?", status, json.dumps(job), job["id"]
        )

    def end(self, job: Row, status: str, **more: Any) -> None:
        """Close a running job; a cancelled job stays cancelled."""
        if self.one(job["id"])["status"] == "running":
            now = self._db.now()
            took = datetime.fromisoformat(now) - datetime.fromisoformat(job["started_at"])
            ended = {"finished_at": now, "elapsed_seconds": took.total_seconds(), "step": status}
            self._set(job | ended | more, status)

    def cancel(self, job_id: str) -> Row:
        """Cancel a job that has not ended.

        Raises:
            Refused: it has ended, or there is no such job.
        """
        job = self.one(job_id)
        if job["status"] in ENDED:
            raise Refused("job_finished", "The job has ended.")
        job |= {"status": "cancelled", "step": "cancelled", "finished_at": self._db.now()}
        self._set(job, "cancelled")
        return job

    def waiting(self) -> list[str]:
        found = self._db.rows("SELECT id FROM jobs WHERE status IN ('queued', 'running')")
        return [row["id"] for row in found]

    def retry(self, job_id: str) -> Row:
        """Queue a failed job again; its submission is in its request.

        Raises:
            Refused: it has not failed, or there is no such job.
        """
        job = self.one(job_id)
        if job["status"] != "failed":
            raise Refused("job_not_retryable", "The job has not failed.")
        job |= {
            "status": "queued", "step": "waiting", "progress": 0.0, "completed_steps": 0, "error": None,
            "started_at": None, "finished_at": None, "retryable": False, "elapsed_seconds": 0.0,
        }  # fmt: skip
        self._set(job, "queued")
        return job


def status(database: Database, started_at: str) -> Row:
    types = database.rows("SELECT doc_type, count(*) AS n FROM documents GROUP BY doc_type")
    states = {
        row["status"]: row["n"]
        for row in database.rows("SELECT status, count(*) AS n FROM jobs GROUP BY status")
    }
    total = database.count("SELECT count(*) FROM documents")
    full = database.count("SELECT count(DISTINCT document) FROM chunks")
    changed = database.row("SELECT at FROM changes")
    return {
        "version": "v3.0.0",
        "model": {"name": "hashed-trigrams", "dimensions": DIMENSIONS, "max_tokens": 256, "loaded": True},
        "device": {"type": "cpu", "threads": 1},
        "documents": {
            "total": total, "searchable": full, "empty": total - full,
            "by_type": {row["doc_type"]: row["n"] for row in types},
        },
        "chunks": database.count("SELECT count(*) FROM chunks"),
        "queue": {name: states.get(name, 0) for name in ("queued", "running", *ENDED)},
        "storage": {
            "path": str(database.folder),
            "bytes": sum(file.stat().st_size for file in database.folder.glob("foreign.db*")),
            "free_bytes": shutil.disk_usage(database.folder).free,
            "originals_bytes": database.count("SELECT sum(size_bytes) FROM documents"),
            "accessible": True,
            # Failed files are kept for good; a very large number stands for no limit.
            "failed_bytes": 0, "failed_bytes_limit": 2**63 - 1, "failed_seconds_limit": 3.15e9,
        },
        "issues": [], "started_at": started_at, "last_updated": changed["at"] if changed else None,
    }  # fmt: skip
