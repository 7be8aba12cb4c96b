"""Documents with their tags and sources."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from .chunks import Chunks
from .database import Database, Row
from .promise import MAX_INTEGER, Refused
from .texts import Passage


class Documents:
    """The documents of a base, by number."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self.chunks = Chunks(database)

    def add(self, request: Row, made: Row, chunks: Sequence[Passage]) -> int:
        """A new document; its number."""
        when = self._db.now()
        title = (request["title"] or made["title"])[:500]
        placed = self._db.execute(
            "INSERT INTO documents (uid, kind, title, titled, doc_type, format, filename, size_bytes, "
            "sha256, scope, metadata, pages, version, created_at, updated_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?)",
            str(uuid4()), request["kind"], title, request["title"] is not None, made["doc_type"],
            made["format"], request["filename"], made["size"], made["sha256"], request["dedup_scope"],
            json.dumps(request["metadata"]), made["pages"], when, when,
        )  # fmt: skip
        number = int(placed.lastrowid or 0)
        self.chunks.replace(number, chunks)
        self._db.changed(when)
        return number

    def unite(self, number: int, request: Row) -> None:
        """Add the tags and the source of a request to a document."""
        before = self._db.writes
        if request["source_path"]:
            self._db.execute("INSERT OR IGNORE INTO sources VALUES (?, ?)", number, request["source_path"])
        for tag in request["tags"]:
            self._db.execute("INSERT OR IGNORE INTO tags VALUES (?, ?)", number, tag)
        if self._db.writes > before:
            self._db.changed(self._db.last)

    def twin(self, kind: str, sha256: str, scope: str) -> int | None:
        """The number of a document that would be the same."""
        found = self._db.row(
            "SELECT id FROM documents WHERE kind = ? AND sha256 = ? AND scope = ?", kind, sha256, scope
        )
        return None if found is None else int(found["id"])

    def number_of(self, key: str) -> int:
        """The number of a document, by number or uid.

        Raises:
            Refused: there is none.
        """
        column, value = ("id", int(key)) if key.isdecimal() else ("uid", key)
        found = None
        if not (isinstance(value, int) and value > MAX_INTEGER):
            found = self._db.row(f"SELECT id FROM documents WHERE {column} = ?", value)
        if found is None:
            raise Refused("document_not_found", "There is no such document.")
        return int(found["id"])

    def one(self, number: int) -> Row:
        """A document as it is told, without its chunks."""
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
        left = {name: value for name, value in row.items() if name not in {"kind", "titled", "scope"}}
        return left | {
            "metadata": json.loads(row["metadata"]), "tags": tags, "source_paths": sources,
            "source_path": sources[0] if sources else None, "chunk_count": chunks,
            "status": "searchable" if chunks else "empty",
            "status_reason": None if chunks else "No text was found in it.", "extraction_method": "foreign",
        }  # fmt: skip

    def page(self, query: Mapping[str, Any]) -> Row:
        """A page of documents."""
        conditions = {
            "source_path": "id IN (SELECT document FROM sources WHERE path = ?)",
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
        """Remove documents; what went."""
        gone = {"documents": 0, "chunks": 0, "bytes": 0, "jobs_cancelled": 0}
        for number in numbers:
            document = self.one(number)
            gone["documents"] += 1
            gone["chunks"] += document["chunk_count"]
            gone["bytes"] += document["size_bytes"]
            self.chunks.forget(number)
            for table in ("tags", "sources"):
                self._db.execute(f"DELETE FROM {table} WHERE document = ?", number)
            self._db.execute("DELETE FROM documents WHERE id = ?", number)
        self._db.changed(self._db.now())
        return gone

    def numbers(self) -> list[int]:
        """The numbers of all documents."""
        return [row["id"] for row in self._db.rows("SELECT id FROM documents")]

    def expect(self, number: int, version: int | None) -> None:
        """Let a change pass that knows the current version.

        Raises:
            Refused: it knows another one.
        """
        current = self._db.count("SELECT version FROM documents WHERE id = ?", number)
        if version is not None and version != current:
            raise Refused(
                "version_conflict", "The document has changed; read it again.", current_version=current
            )

    def rewrite(self, number: int, title: str | None, made: Row | None, chunks: Sequence[Passage]) -> None:
        """Give a note another text, title, or both."""
        if made is not None:
            titled = self._db.count("SELECT titled FROM documents WHERE id = ?", number)
            title = title or (None if titled else made["title"][:500])
            self._db.execute(
                "UPDATE documents SET sha256 = ?, size_bytes = ? WHERE id = ?",
                made["sha256"], made["size"], number,
            )  # fmt: skip
            self.chunks.replace(number, chunks)
        if title is not None:
            self._db.execute("UPDATE documents SET title = ? WHERE id = ?", title, number)
        self._raise_version(number)

    def add_tags(self, number: int, tags: Sequence[str]) -> None:
        """Add tags."""
        before = self._db.writes
        for tag in tags:
            self._db.execute("INSERT OR IGNORE INTO tags VALUES (?, ?)", number, tag)
        if self._db.writes > before:
            self._raise_version(number)

    def remove_tag(self, number: int, tag: str) -> None:
        """Take a tag off.

        Raises:
            Refused: it is not there.
        """
        if not self._db.execute("DELETE FROM tags WHERE document = ? AND tag = ?", number, tag).rowcount:
            raise Refused("tag_not_found", "The document does not carry this tag.")
        self._raise_version(number)

    def _raise_version(self, number: int) -> None:
        when = self._db.now()
        self._db.execute(
            "UPDATE documents SET version = version + 1, updated_at = ? WHERE id = ?", when, number
        )
        self._db.changed(when)

    def tags(self, query: Mapping[str, Any]) -> Row:
        """Tags with their counts."""
        counted = self._db.rows(
            "SELECT tag, count(DISTINCT t.document) AS documents, count(c.id) AS chunks FROM tags t "
            "LEFT JOIN chunks c ON c.document = t.document GROUP BY tag ORDER BY tag"
        )
        found = [row for row in counted if row["tag"].startswith(query["prefix"])]
        page = found[query["offset"] : query["offset"] + query["limit"]]
        return {"tags": page, "total": len(found), "limit": query["limit"], "offset": query["offset"]}
