"""Earlier versions of documents, stored as their rows: kept for a month, and restored as a whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from .promise import MAX_INTEGER, Refused
from .store import Database, Documents, Row
from .texts import Passage

_TABLE = """
CREATE TABLE IF NOT EXISTS past (
  place INTEGER PRIMARY KEY AUTOINCREMENT, document INTEGER, uid TEXT, version INTEGER, removed INTEGER,
  kept_at TEXT, expires_at TEXT, said TEXT, chunks TEXT);
"""
_KEPT = timedelta(days=30)
_LISTED = (
    "title", "doc_type", "format", "filename", "source_paths", "size_bytes", "sha256", "tags", "chunk_count",
    "updated_at",
)  # fmt: skip
_CONTENT = (
    "kind", "title", "titled", "doc_type", "format", "filename", "size_bytes", "sha256", "same", "pages",
    "note",
)  # fmt: skip


class History:
    """The kept versions of the documents of a base."""

    def __init__(self, database: Database, documents: Documents) -> None:
        self._db, self._documents = database, documents
        database.execute(_TABLE)

    def keep(self, number: int, *, removed: bool = False) -> None:
        row = self._db.row("SELECT * FROM documents WHERE id = ?", number)
        assert row is not None
        now = self._db.now()
        until = datetime.fromisoformat(now) + _KEPT
        said = self._documents.one(number) | {"row": row}
        self._db.execute(
            "INSERT INTO past (document, uid, version, removed, kept_at, expires_at, said, chunks) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            number, row["uid"], row["version"], removed, now,
            until.isoformat(timespec="microseconds").replace("+00:00", "Z"),
            json.dumps(said), json.dumps(self._documents.chunks.of(number)),
        )  # fmt: skip

    def drop(self, number: int | None = None) -> Row:
        """Discard the history of a document, or of all."""
        where, values = ("WHERE document = ?", (number,)) if number is not None else ("", ())
        return {"versions": self._db.execute(f"DELETE FROM past {where}", *values).rowcount}

    def number_of(self, key: str) -> int:
        """Return the number of a document that exists, or whose history is kept.

        Raises:
            Refused: there is no such document.
        """
        try:
            return self._documents.number_of(key)
        except Refused:
            column, value = ("document", int(key)) if key.isdecimal() else ("uid", key)
            if isinstance(value, int) and value > MAX_INTEGER:
                raise
            found = self._kept(f"{column} = ?", value)
            if not found:
                raise
            return int(found[0]["document"])

    def page(self, query: Mapping[str, Any], number: int | None = None) -> Row:
        """The versions of a document, or, without a number, the removed documents."""
        found = self._kept("removed") if number is None else self._kept("document = ?", number)
        listed = [_listed(row) for row in found[query["offset"] : query["offset"] + query["limit"]]]
        return {"versions": listed, "total": len(found), "limit": query["limit"], "offset": query["offset"]}

    def detail(self, number: int, version: int, offset: int, limit: int) -> Row:
        """Return a version with a part of its text.

        Raises:
            Refused: the version is not kept.
        """
        row = self._find(number, version)
        said, text = json.loads(row["said"]), _text_of(row)
        part = {"text": text[offset : offset + limit], "text_offset": offset, "text_length": len(text)}
        return _listed(row) | part | {"metadata": said["metadata"]}

    def restore(self, number: int, version: int, expected: int | None) -> Row:
        """Restore a version.

        Raises:
            Refused: it is not kept, or the current version differs from `expected`.
        """
        row = self._find(number, version)
        before = json.loads(row["said"])["row"]
        chunks = [
            Passage(each["text"], each["start"], each["end"], each["page"], each["heading"])
            for each in json.loads(row["chunks"])
        ]
        standing = self._db.row("SELECT * FROM documents WHERE id = ?", number)
        if standing is None:
            self._bring_back(row, expected)
        else:
            self._documents.expect(number, expected)
            if all(standing[name] == before[name] for name in _CONTENT if name != "titled"):
                return self._documents.one(number)
            self.keep(number)
            columns = ", ".join(f"{name} = ?" for name in _CONTENT)
            values = [before[name] for name in _CONTENT]
            self._db.execute(f"UPDATE documents SET {columns} WHERE id = ?", *values, number)
        self._documents.chunks.replace(number, chunks)
        self._documents.raise_version(number)
        return self._documents.one(number)

    def _bring_back(self, row: Row, expected: int | None) -> None:
        number = row["document"]
        last = self._db.count("SELECT max(version) FROM past WHERE document = ?", number)
        said = json.loads(self._find(number, last)["said"])
        if expected not in (None, last):
            raise Refused("version_conflict", "It has another version.", current_version=last)
        request = {"tags": said["tags"], "dedup_scope": said["row"]["scope"]}
        free = [
            path
            for path in said["source_paths"]
            if not self._documents.pointed_to(request | {"source_path": path})
        ]
        past = json.loads(row["said"])["row"]
        content = {name: past[name] for name in _CONTENT}
        before = said["row"] | content | {"unsourced": said["row"]["unsourced"] or not free}
        marks = ", ".join("?" * len(before))
        self._db.execute(f"INSERT INTO documents ({', '.join(before)}) VALUES ({marks})", *before.values())
        for tag in said["tags"]:
            self._db.execute("INSERT INTO tags VALUES (?, ?)", number, tag)
        for path in free:
            self._db.execute("INSERT INTO sources VALUES (?, ?)", number, path)
        if row["removed"]:
            self._db.execute("DELETE FROM past WHERE place = ?", row["place"])
        self._db.execute("UPDATE past SET removed = 0 WHERE document = ?", number)

    def _find(self, number: int, version: int) -> Row:
        kept = {row["version"]: row for row in self._kept("document = ?", number)}
        if version not in kept:
            numbers = ", ".join(map(str, kept)) or "none"
            raise Refused("version_not_found", f"That version is not kept; these are: {numbers}.")
        return kept[version]

    def _kept(self, condition: str, *values: object) -> list[Row]:
        sql = f"SELECT * FROM past WHERE {condition} AND expires_at > ? ORDER BY place DESC"
        return self._db.rows(sql, *values, self._db.now())


def _listed(row: Row) -> Row:
    said = json.loads(row["said"])
    return {
        "document_id": row["document"], "uid": row["uid"], "version": row["version"],
        "removed": bool(row["removed"]), "kept_at": row["kept_at"], "expires_at": row["expires_at"],
    } | {name: said[name] for name in _LISTED}  # fmt: skip


def _text_of(row: Row) -> str:
    note = json.loads(row["said"])["row"]["note"]
    if note is not None:
        return str(note)
    text = ""
    for chunk in json.loads(row["chunks"]):
        text += "\n" * (chunk["start"] - len(text)) + chunk["text"]
    return text
