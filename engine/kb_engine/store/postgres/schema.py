"""The layout of a PostgreSQL base, and the migrations from each earlier layout.

All tables are in the schema `kb`. `layout.version` is the number of the last migration. Each runs in one
transaction, deletes nothing, and is never changed once released: a new layout is a new migration.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kb_contracts.semantics.documents import WHITE_SPACE
from kb_engine.address import Address
from kb_engine.store import layout_steps as steps
from kb_engine.store.port import MARK, BaseTooNew, EmbedderIdentity, NotABase
from kb_engine.store.postgres.connection import SCHEMA, Db, as_json, attempted, row, rows, value
from kb_engine.store.postgres.transaction import layout_version, lock_base

_MIGRATING = 0x6B62_0001
"""Advisory lock for migrations: of several engines started together one migrates, and the rest wait."""

_TYPES = {
    "text": 'text COLLATE "C"', "unsorted": "text", "whole": "bigint", "small": "integer",
    "real": "double precision", "bytes": "bytea", "truth": "boolean", "false": "false",
    "number": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "compact": "",
    "force_ocr": "\n  force_ocr boolean NOT NULL DEFAULT false,",
    "lease_until": "\n  lease_until timestamptz,",
}  # fmt: skip

_VERSION_1 = """
CREATE TABLE base (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  embedder text COLLATE "C",
  dimensions integer,
  chunks bigint NOT NULL DEFAULT 0,
  words bigint NOT NULL DEFAULT 0,
  generation bigint NOT NULL DEFAULT 0,
  last_document bigint NOT NULL DEFAULT 0,
  last_chunk bigint NOT NULL DEFAULT 0,
  last_updated text COLLATE "C"
) WITH (fillfactor = 10);
INSERT INTO base DEFAULT VALUES;

-- Beside the row of the base, which is held by whoever changes documents.
CREATE TABLE pings (one boolean PRIMARY KEY DEFAULT true CHECK (one), at text) WITH (fillfactor = 10);

CREATE TABLE documents (
  id bigint PRIMARY KEY,
  uid text COLLATE "C" NOT NULL UNIQUE,
  kind text COLLATE "C" NOT NULL,
  title text COLLATE "C" NOT NULL,
  doc_type text COLLATE "C" NOT NULL,
  format text COLLATE "C",
  filename text COLLATE "C",
  source_path text COLLATE "C",
  size_bytes bigint NOT NULL,
  sha256 text COLLATE "C" NOT NULL,
  metadata text COLLATE "C" NOT NULL,
  source_type text COLLATE "C",
  dedup_scope text COLLATE "C" NOT NULL,
  status text COLLATE "C" NOT NULL,
  status_reason text COLLATE "C",
  extraction_method text COLLATE "C" NOT NULL,
  pages integer,
  chunk_count integer NOT NULL,
  token_count integer NOT NULL,
  version integer NOT NULL DEFAULT 1,
  created_at text COLLATE "C" NOT NULL,
  updated_at text COLLATE "C" NOT NULL
);
CREATE INDEX documents_by_content ON documents (sha256, kind);
CREATE INDEX documents_by_creation ON documents (created_at);
CREATE INDEX documents_by_update ON documents (updated_at);
CREATE INDEX documents_counted ON documents (doc_type, status) INCLUDE (size_bytes, chunk_count);

CREATE TABLE note_texts (
  document_id bigint PRIMARY KEY REFERENCES documents ON DELETE CASCADE,
  text text NOT NULL
);

CREATE TABLE document_sources (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  document_id bigint NOT NULL REFERENCES documents ON DELETE CASCADE,
  source_path text COLLATE "C" NOT NULL
);
CREATE INDEX document_sources_by_document ON document_sources (document_id);
-- A hash, for a path may be longer than a row of a B-tree.
CREATE INDEX document_sources_by_path ON document_sources USING hash (source_path);

CREATE TABLE document_tags (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  document_id bigint NOT NULL REFERENCES documents ON DELETE CASCADE,
  tag text COLLATE "C" NOT NULL,
  UNIQUE (document_id, tag)
);
CREATE INDEX document_tags_by_tag ON document_tags (tag, document_id);

CREATE TABLE chunks (
  id bigint PRIMARY KEY,
  uid text COLLATE "C" NOT NULL,
  document_id bigint NOT NULL REFERENCES documents ON DELETE CASCADE,
  position integer NOT NULL,
  text text NOT NULL,
  page integer,
  heading text,
  first bigint NOT NULL,
  beyond bigint NOT NULL,
  tokens integer NOT NULL,
  words integer NOT NULL,
  UNIQUE (document_id, position)
);

-- Beside the chunks: a search by meaning reads all of it, and nothing else. A row stays in one page up to
-- 2,000 dimensions, for what PostgreSQL puts aside it has to fetch row by row.
CREATE TABLE vectors (
  chunk_id bigint PRIMARY KEY,
  document_id bigint NOT NULL,
  vector vector NOT NULL
) WITH (toast_tuple_target = 8160);
CREATE INDEX vectors_by_document ON vectors (document_id);
CREATE TABLE next_vectors (LIKE vectors INCLUDING ALL);
CREATE TABLE next_embedder (one boolean PRIMARY KEY DEFAULT true CHECK (one), name text, dimensions integer);

-- Which words stand in which chunk. `frequency` counts the title double, `length` is that of the chunk with
-- title and heading, in words: all that BM25 asks, so that a search reads the index alone.
CREATE TABLE postings (
  term text COLLATE "C" NOT NULL,
  chunk_id bigint NOT NULL,
  frequency integer NOT NULL,
  length integer NOT NULL,
  PRIMARY KEY (term, chunk_id) INCLUDE (frequency, length)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);
CREATE INDEX postings_by_chunk ON postings (chunk_id);

-- Files between their acceptance and the end of their job, for whichever engine takes it.
CREATE TABLE spool_files (
  name text COLLATE "C" PRIMARY KEY,
  accepted boolean NOT NULL DEFAULT false,
  size_bytes bigint NOT NULL DEFAULT 0,
  touched_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE spool_parts (
  name text COLLATE "C" NOT NULL REFERENCES spool_files ON DELETE CASCADE,
  part integer NOT NULL,
  data bytea NOT NULL,
  PRIMARY KEY (name, part)
);
ALTER TABLE spool_parts ALTER COLUMN data SET STORAGE EXTERNAL;
"""

FILL_RESERVE = "INSERT INTO reserve (room) SELECT generate_series(1, 10000)"

_WHITE_SPACE = "".join(f"\\u{ord(char):04x}" for char in WHITE_SPACE)

_STEMMED = "ar ca cs da de el es et eu fa fi fr ga hi hu hy id it lt ne nl no pl pt ro ru sr sv ta tr"

_UNSPACED = (
    r"\u0e00-\u0eff\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3040-\u30ff\u3100-\u312f"
    r"\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9f"
    r"\U00020000-\U0003ffff"
)


def _own(step: str) -> str:
    """Return a step that both databases share in the types of PostgreSQL."""
    return step.format_map(_TYPES)


MIGRATIONS: Sequence[str] = (
    _VERSION_1 + _own(steps.COLLECTIONS + steps.JOBS),
    _own(steps.UPDATES),
    _own(steps.LANES),
    _own(steps.FAILED_JOBS),
    # Every change of a document has a number, which a separate index follows.
    """
ALTER TABLE base ADD COLUMN changes bigint NOT NULL DEFAULT 1;
CREATE TABLE index_changes (generation bigint PRIMARY KEY, document_id bigint);
""",
    # Documents are changed concurrently: totals are counted in as many rows as there are concurrent changes,
    # and ids come from sequences, which continue after the last id.
    """
CREATE TABLE counters (
  slot bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  chunks bigint NOT NULL,
  words bigint NOT NULL,
  generation bigint NOT NULL,
  changes bigint NOT NULL,
  last_updated text COLLATE "C"
) WITH (fillfactor = 10);
CREATE VIEW totals AS SELECT
  b.embedder, b.dimensions,
  b.chunks + c.chunks AS chunks,
  b.words + c.words AS words,
  b.generation + c.generation AS generation,
  b.changes + c.changes AS changes,
  greatest(b.last_updated, c.last_updated) AS last_updated
FROM base b, (SELECT
  coalesce(sum(chunks), 0)::bigint AS chunks,
  coalesce(sum(words), 0)::bigint AS words,
  coalesce(sum(generation), 0)::bigint AS generation,
  coalesce(sum(changes), 0)::bigint AS changes,
  max(last_updated) AS last_updated
  FROM counters) c;
CREATE SEQUENCE document_ids;
CREATE SEQUENCE chunk_ids;
SELECT setval('document_ids', last_document + 1, false), setval('chunk_ids', last_chunk + 1, false) FROM base;
""",
    _own(steps.FEEDBACK),
    _own(steps.LANGUAGES),
    _own(steps.SOURCES),
    _own(steps.VERSIONS) + "ALTER TABLE versions ALTER COLUMN vectors SET STORAGE EXTERNAL;",
    _own(steps.REACH),
    # Pages to be freed on a full disk; the table has no index, so that emptying it needs no new pages.
    f"""
CREATE TABLE reserve (room bigint);
{FILL_RESERVE};
""",
    # Kept originals stay in the spool tables; versions name the file from which they were made.
    f"""
CREATE TABLE originals (
  sha256 text COLLATE "C" PRIMARY KEY,
  size_bytes bigint NOT NULL,
  file text COLLATE "C" NOT NULL UNIQUE REFERENCES spool_files ON DELETE CASCADE
);
ALTER TABLE versions ADD COLUMN original text COLLATE "C";
UPDATE versions SET original = {as_json("members")}->>'sha256' WHERE {as_json("members")}->>'kind' = 'file';
CREATE INDEX versions_by_original ON versions (original) WHERE original IS NOT NULL;
""",  # noqa: S608
    # A path of 1,000 characters may be too long for a B-tree; its hash never is.
    """
DROP INDEX jobs_by_source;
CREATE INDEX jobs_by_source ON jobs USING hash (source_path) WHERE finished_at IS NULL;
""",
    # Deduplicate notes regardless of trailing white space, and by the bytes of their text as it was sent: NUL
    # and its escape are kept as `connection.to_base` says.
    f"""
ALTER TABLE documents ADD COLUMN note_hash text COLLATE "C";
UPDATE documents SET
  note_hash = encode(sha256(decode(replace(replace(encode(convert_to(
      rtrim(note_texts.text, E'{_WHITE_SPACE}'), 'UTF8'), 'escape'),
    E'\\x01\\x01', E'\\\\000'), E'\\x01\\x02', E'\\x01'), 'escape')), 'hex')
  FROM note_texts WHERE note_texts.document_id = documents.id;
CREATE INDEX documents_by_note ON documents (note_hash) WHERE note_hash IS NOT NULL;
""",  # noqa: S608
    # Passages and versions are known by hashes of their texts. A document that lacks passages has none, nor
    # has a text that is not kept as it is (`connection.to_base`).
    """
ALTER TABLE documents ADD COLUMN passages_hash text COLLATE "C";
ALTER TABLE versions ADD COLUMN text_hash text COLLATE "C";
UPDATE documents SET passages_hash = known.hash
  FROM (
    SELECT document_id, count(*) AS passages, max(position) AS last, encode(sha256(convert_to(string_agg(
        encode(sha256(convert_to(text, 'UTF8')), 'hex'), '' ORDER BY position), 'UTF8')), 'hex') AS hash
      FROM chunks GROUP BY document_id HAVING NOT bool_or(text LIKE E'%\\x01%')
  ) known
  WHERE known.document_id = documents.id AND known.passages = documents.chunk_count
    AND known.last = documents.chunk_count - 1;
UPDATE documents SET passages_hash = encode(sha256(''), 'hex')
  WHERE chunk_count = 0 AND id NOT IN (SELECT document_id FROM chunks);
UPDATE versions SET text_hash = encode(sha256(convert_to(text, 'UTF8')), 'hex')
  WHERE text NOT LIKE E'%\\x01%';
""",
    # The stem of a language carries the language (`words.py`), unlike identifiers and letters of scripts
    # without spaces.
    rf"""
UPDATE postings SET term = documents.language || '|' || term
  FROM chunks JOIN documents ON documents.id = chunks.document_id
  WHERE chunks.id = postings.chunk_id AND documents.language = ANY (string_to_array('{_STEMMED}', ' '))
    AND term !~ '^[{_UNSPACED}]|[._:/@+#~ -]';
""",  # noqa: S608
    _own(steps.FIDELITY),
    # Documents whose words an earlier analyser made; engines index them again in the background.
    """
CREATE TABLE outdated_words (document_id bigint PRIMARY KEY);
INSERT INTO outdated_words SELECT id FROM documents;
""",
    # Words in their order, which phrases and exclusions compare. Long rows stay in their page: fetching them
    # from elsewhere would take longer than comparing them.
    """
CREATE TABLE word_orders (
  chunk_id bigint PRIMARY KEY,
  words text COLLATE "C" NOT NULL
) WITH (toast_tuple_target = 8160);
ALTER TABLE word_orders ALTER COLUMN words SET STORAGE EXTERNAL;
CREATE INDEX word_orders_by_word ON word_orders USING gin (string_to_array(words, ' '));
INSERT INTO outdated_words SELECT id FROM documents ON CONFLICT DO NOTHING;
""",
    _own(steps.QUESTIONS),
)
"""The migration at index n leads from version n to version n + 1."""


async def migrate(db: Db, address: Address, migrations: Sequence[str], *, unfinished: bool = False) -> None:
    """Migrate the base to the latest layout, one transaction per migration, even while older engines run.

    Older engines can still read, as a migration deletes nothing, but no longer write
    (`transaction.expect_layout`). `unfinished` marks a new base as the target of `kb migrate`.

    Raises:
        BaseTooNew: a later engine has written the base.
        NotABase: the schema belongs to another program.
    """
    # A search of another engine may cause a deadlock with a migration; the server then aborts one of the two.
    while await attempted(partial(_one_step, db, address, migrations, unfinished)):
        pass


async def _one_step(db: Db, address: Address, migrations: Sequence[str], unfinished: bool) -> bool:
    async with db.transaction():
        await rows(db, "SELECT pg_advisory_xact_lock(?)", (_MIGRATING,))
        version = await _version(db, address)
        if version > len(migrations):
            raise BaseTooNew(address, version, len(migrations))
        if version == len(migrations):
            return False
        if version:
            # Wait for changes in flight; later ones then see the new version. Before version 6 changes locked
            # the row of the base.
            await lock_base(db, shared=False)
            await rows(db, "SELECT FROM base FOR UPDATE")
        elif unfinished:
            await db.execute(MARK)
        await db.execute(migrations[version])
        await rows(db, "UPDATE layout SET version = ?", (version + 1,))
        return True


async def _version(db: Db, address: Address) -> int:
    """Return the number of the layout. For a new base create its schema and return 0."""
    if await value(db, "SELECT to_regclass(?::text) IS NOT NULL", (f"{SCHEMA}.layout",)):
        return await layout_version(db)
    theirs = (
        "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = ?"
    )
    if await value(db, theirs, (SCHEMA,)):
        raise NotABase(address, f"its schema {SCHEMA} belongs to another program. Name another database.")
    await db.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
    await db.execute(
        "CREATE TABLE layout (one boolean PRIMARY KEY DEFAULT true CHECK (one), version integer NOT NULL);"
        "INSERT INTO layout (version) VALUES (0)"
    )
    return 0


async def stored_embedder(db: Db) -> EmbedderIdentity | None:
    """Return the embedder that filled the base, or None; lock its row until the transaction ends."""
    name, dimensions = await row(db, "SELECT embedder, dimensions FROM base FOR UPDATE") or (None, None)
    return None if name is None or dimensions is None else EmbedderIdentity.noted(name, dimensions)
