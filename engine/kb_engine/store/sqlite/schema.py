"""The layout of a base, and the migrations from each earlier layout.

`PRAGMA user_version` is the number of the last migration. All that a base needs run in one transaction: an
interrupted one leaves the layout that it had, of which there is a copy, and never a layout in between, which
no version of the engine knows. A migration deletes only data that can be derived from the rest, and is never
changed once released: a new layout is a new migration.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import apsw

from kb_contracts.semantics.documents import note_hash, text_digest
from kb_engine.index.words import TOKENIZER, index_text
from kb_engine.store import layout_steps as steps
from kb_engine.store.port import UNFINISHED, BaseTooNew, EmbedderIdentity, NotABase
from kb_engine.store.repository.content import passages_hash
from kb_engine.store.sqlite.connection import rows, set_meta, transaction, value
from kb_engine.store.sqlite.copying import keep_layout

Migration = str | Callable[[apsw.Connection], None]  # SQL, or a function if SQL does not suffice

_TYPES = {
    "text": "TEXT", "unsorted": "TEXT", "whole": "INTEGER", "small": "INTEGER", "real": "REAL",
    "bytes": "BLOB", "truth": "INTEGER", "false": "0", "number": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "compact": " WITHOUT ROWID", "force_ocr": "", "lease_until": "",
}  # fmt: skip

_VERSION_1 = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE documents (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  uid TEXT NOT NULL UNIQUE,
  kind TEXT NOT NULL,
  title TEXT NOT NULL,
  doc_type TEXT NOT NULL,
  format TEXT,
  filename TEXT,
  source_path TEXT,
  size_bytes INTEGER NOT NULL,
  sha256 TEXT NOT NULL,
  metadata TEXT NOT NULL DEFAULT '{}',
  created_at TEXT NOT NULL
);

CREATE TABLE note_texts (
  document_id INTEGER PRIMARY KEY REFERENCES documents (id) ON DELETE CASCADE,
  text TEXT NOT NULL
);

CREATE TABLE chunks (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  uid TEXT NOT NULL,
  document_id INTEGER NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
  position INTEGER NOT NULL,
  text TEXT NOT NULL,
  page INTEGER,
  heading TEXT,
  first INTEGER NOT NULL,
  beyond INTEGER NOT NULL,
  UNIQUE (document_id, position)
);

CREATE TABLE vectors (
  chunk_id INTEGER PRIMARY KEY REFERENCES chunks (id) ON DELETE CASCADE,
  vector BLOB NOT NULL
);

CREATE TABLE document_tags (
  document_id INTEGER NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
  tag TEXT NOT NULL,
  PRIMARY KEY (document_id, tag)
);

CREATE VIRTUAL TABLE chunk_text USING fts5 (
  text, content = 'chunks', content_rowid = 'id', tokenize = 'porter unicode61'
);
"""

_VERSION_2_DOCUMENTS = """
ALTER TABLE documents ADD COLUMN updated_at TEXT;
ALTER TABLE documents ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
ALTER TABLE documents ADD COLUMN dedup_scope TEXT NOT NULL DEFAULT '';
ALTER TABLE documents ADD COLUMN source_type TEXT;
ALTER TABLE documents ADD COLUMN status TEXT NOT NULL DEFAULT 'searchable';
ALTER TABLE documents ADD COLUMN status_reason TEXT;
ALTER TABLE documents ADD COLUMN extraction_method TEXT NOT NULL DEFAULT 'unknown';
ALTER TABLE documents ADD COLUMN pages INTEGER;
ALTER TABLE documents ADD COLUMN chunk_count INTEGER NOT NULL DEFAULT 0;

UPDATE documents SET
  updated_at = created_at,
  chunk_count = (SELECT count(*) FROM chunks WHERE document_id = documents.id);
UPDATE documents SET status = 'empty', status_reason = 'No text was found.' WHERE chunk_count = 0;
UPDATE documents SET dedup_scope = coalesce((
  SELECT tag FROM document_tags WHERE document_id = documents.id AND tag GLOB 'collection:*'
  ORDER BY rowid DESC LIMIT 1), '');

CREATE INDEX documents_by_content ON documents (sha256, kind, dedup_scope);
CREATE INDEX documents_by_creation ON documents (created_at);
CREATE INDEX documents_by_update ON documents (updated_at);
CREATE INDEX documents_counted ON documents (doc_type, status, size_bytes, chunk_count);
"""

_VERSION_2_TABLES = f"""
CREATE TABLE document_sources (
  id INTEGER PRIMARY KEY,
  document_id INTEGER NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
  source_path TEXT NOT NULL,
  UNIQUE (document_id, source_path)
);
CREATE INDEX document_sources_by_path ON document_sources (source_path, document_id);
INSERT INTO document_sources (document_id, source_path)
  SELECT id, source_path FROM documents WHERE source_path IS NOT NULL ORDER BY id;

ALTER TABLE document_tags RENAME TO document_tags_1;
CREATE TABLE document_tags (
  id INTEGER PRIMARY KEY,
  document_id INTEGER NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
  tag TEXT NOT NULL,
  UNIQUE (document_id, tag)
);
CREATE INDEX document_tags_by_tag ON document_tags (tag, document_id);
INSERT INTO document_tags (document_id, tag) SELECT document_id, tag FROM document_tags_1 ORDER BY rowid;
DROP TABLE document_tags_1;

INSERT INTO meta SELECT 'last_updated', max(updated_at) FROM documents
  HAVING count(*) > 0;

DROP TABLE chunk_text;
CREATE VIRTUAL TABLE words USING fts5 (
  title, heading, text, content = '', contentless_delete = 1, tokenize = '{TOKENIZER}'
);
"""  # noqa: S608


def _sixteenth(db: apsw.Connection) -> None:
    """Deduplicate notes regardless of trailing white space."""
    db.execute("ALTER TABLE documents ADD COLUMN note_hash TEXT")
    for document_id, text in db.execute("SELECT document_id, text FROM note_texts"):
        db.execute("UPDATE documents SET note_hash = ? WHERE id = ?", (note_hash(str(text)), document_id))
    db.execute("CREATE INDEX documents_by_note ON documents (note_hash) WHERE note_hash IS NOT NULL")


def _seventeenth(db: apsw.Connection) -> None:
    """Passages and versions are known by hashes of their texts; a document that misses some has no hash."""
    db.execute("ALTER TABLE documents ADD COLUMN passages_hash TEXT")
    db.execute("ALTER TABLE versions ADD COLUMN text_hash TEXT")
    passages = "SELECT position, text FROM chunks WHERE document_id = ? ORDER BY position"
    for document_id, count in rows(db, "SELECT id, chunk_count FROM documents"):
        found = rows(db, passages, (document_id,))
        if [position for position, _ in found] == [*range(count)]:
            known = passages_hash(text for _, text in found)
            db.execute("UPDATE documents SET passages_hash = ? WHERE id = ?", (known, document_id))
    for (number,) in rows(db, "SELECT id FROM versions"):
        text = value(db, "SELECT text FROM versions WHERE id = ?", (number,))
        db.execute("UPDATE versions SET text_hash = ? WHERE id = ?", (text_digest(text)[0], number))


def _own(step: str) -> str:
    """Return a step that both databases share in the types of SQLite."""
    return step.format_map(_TYPES)


def _second(db: apsw.Connection) -> None:
    """Documents record their last change; jobs and idempotency keys become durable; CJK words are indexed."""
    for sql in (_VERSION_2_DOCUMENTS, _VERSION_2_TABLES, _own(steps.JOBS)):
        db.execute(sql)
    for document_id, metadata in rows(db, "SELECT id, metadata FROM documents WHERE metadata <> '{}'"):
        source_type = json.loads(metadata).get("source_type")
        known = source_type if isinstance(source_type, str) else None
        db.execute("UPDATE documents SET source_type = ? WHERE id = ?", (known, document_id))
    for chunk in db.execute(
        "SELECT c.id, d.title, c.heading, c.text FROM chunks c JOIN documents d ON d.id = c.document_id"
    ):
        chunk_id, *texts = chunk
        prepared = [index_text(str(text or "")) for text in texts]
        db.execute(
            "INSERT INTO words (rowid, title, heading, text) VALUES (?, ?, ?, ?)", (chunk_id, *prepared)
        )


_OURS = {"meta", "documents", "chunks"}
"""Tables of every layout. They identify a base, because other programs use `user_version` too."""

MIGRATIONS: tuple[Migration, ...] = (
    _VERSION_1,
    _second,
    # Collections have descriptions; tokens are counted.
    _own(steps.COLLECTIONS)  # noqa: S608
    + """
-- NULL in chunks of earlier layouts; their documents' sums are an estimate, four characters a token.
ALTER TABLE chunks ADD COLUMN tokens INTEGER;
ALTER TABLE documents ADD COLUMN token_count INTEGER NOT NULL DEFAULT 0;
UPDATE documents SET token_count = (
  SELECT coalesce(sum((length(text) + 3) / 4), 0) FROM chunks WHERE document_id = documents.id);

-- What collections add up, document by document, without reading the rows, whose metadata may be long.
CREATE INDEX documents_figures ON documents (id, chunk_count, token_count, created_at, updated_at);
""",
    # A job records whether its file is read by OCR even if it contains text.
    "ALTER TABLE jobs ADD COLUMN force_ocr INTEGER NOT NULL DEFAULT 0",
    _own(steps.UPDATES),
    _own(steps.LANES),
    _own(steps.FAILED_JOBS),
    # Every change of a document has a number, which a separate index follows.
    """
CREATE TABLE index_changes (generation INTEGER PRIMARY KEY AUTOINCREMENT, document_id INTEGER);
INSERT INTO sqlite_sequence (name, seq) VALUES ('index_changes', 1);
""",
    # Words and vectors are indexed in files beside the base, which holds their list.
    """
DROP TABLE words;
CREATE TABLE index_segments (
  name TEXT PRIMARY KEY,
  first INTEGER NOT NULL,
  last INTEGER NOT NULL
) WITHOUT ROWID;
""",
    _own(steps.FEEDBACK),
    _own(steps.LANGUAGES),
    _own(steps.SOURCES),
    _own(steps.VERSIONS),
    _own(steps.REACH),
    # The base lists the kept original files; versions name the file from which they were made.
    """
CREATE TABLE originals (sha256 TEXT PRIMARY KEY, size_bytes INTEGER NOT NULL) WITHOUT ROWID;
ALTER TABLE versions ADD COLUMN original TEXT;
UPDATE versions SET original = json_extract(members, '$.sha256')
  WHERE json_extract(members, '$.kind') = 'file';
CREATE INDEX versions_by_original ON versions (original) WHERE original IS NOT NULL;
""",
    _sixteenth,
    _seventeenth,
    _own(steps.FIDELITY),
    _own(steps.QUESTIONS),
)
"""The migration at index n leads from version n to version n + 1."""


def migrate(db: apsw.Connection, path: Path, migrations: tuple[Migration, ...] = MIGRATIONS) -> None:
    """Migrate the base to the latest layout, in one transaction, and keep a copy of the old layout.

    Raises:
        BaseTooNew: a later engine has written the base.
        NotABase: the file belongs to another program.
    """
    version = int(db.pragma("user_version"))
    tables = {name for (name,) in rows(db, "SELECT name FROM sqlite_schema")}
    if tables - {UNFINISHED} if version == 0 else version < 0 or not tables >= _OURS:
        raise NotABase(path, "it belongs to another program. Name another file.")
    if version > len(migrations):
        raise BaseTooNew(path, version, len(migrations))
    if 0 < version < len(migrations):
        keep_layout(db, path, version)
    if version == len(migrations):
        return
    with transaction(db):
        for step in migrations[version:]:
            if isinstance(step, str):
                db.execute(step)
            else:
                step(db)
        db.pragma("user_version", len(migrations))


def is_unfinished(db: apsw.Connection) -> bool:
    """True if the base is the target of an unfinished migration."""
    return bool(rows(db, "SELECT 1 FROM sqlite_schema WHERE name = ?", (UNFINISHED,)))


def stored_embedder(db: apsw.Connection) -> EmbedderIdentity | None:
    """Return the embedder that filled the base; None for a new base."""
    found = dict(rows(db, "SELECT name, value FROM meta WHERE name IN ('embedder', 'dimensions')"))
    return EmbedderIdentity.noted(found["embedder"], int(found["dimensions"])) if found else None


def set_embedder(db: apsw.Connection, embedder: EmbedderIdentity) -> None:
    """Record the embedder of the vectors in the base."""
    set_meta(db, "embedder", embedder.note)
    set_meta(db, "dimensions", str(embedder.dimensions))
