"""SQL of migrations that both databases share, with a placeholder for each type of a column, and for two
columns of a job that only the first layout of PostgreSQL has.

A step is never changed once released. `schema.py` of each database has the order, and its own steps.
"""

from __future__ import annotations

from kb_engine.turns import SHORT_BYTES

COLLECTIONS = """
-- `target_audience` and `usage_scenarios` are JSON, or NULL.
CREATE TABLE collections (
  id {text} PRIMARY KEY,
  name {text} NOT NULL UNIQUE,
  description {text} NOT NULL,
  created_by {text} NOT NULL,
  target_audience {text},
  usage_scenarios {text},
  created_at {text} NOT NULL,
  updated_at {text} NOT NULL
){compact};
"""

JOBS = """
CREATE TABLE jobs (
  seq {number},
  id {text} NOT NULL UNIQUE,
  status {text} NOT NULL,
  kind {text} NOT NULL,
  title {text} NOT NULL,
  tags {text} NOT NULL,
  metadata {text} NOT NULL,
  source_path {text},
  dedup_scope {text} NOT NULL,
  sha256 {text} NOT NULL,
  size_bytes {whole} NOT NULL,
  spool {text},
  filename {text},
  format {text},
  doc_type {text} NOT NULL,{force_ocr}
  lease {text},{lease_until}
  step {text} NOT NULL,
  completed_steps {small} NOT NULL DEFAULT 0,
  total_steps {small} NOT NULL DEFAULT 0,
  attempts {small} NOT NULL DEFAULT 0,
  document_id {whole},
  document_uid {text},
  deduplicated {truth} NOT NULL DEFAULT {false},
  error_code {text},
  error_message {text},
  created_at {text} NOT NULL,
  started_at {text},
  finished_at {text}
);
-- A table of its own: a job is rewritten with every step reported, a text of a megabyte should not be.
CREATE TABLE job_texts (
  job_id {text} PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
  text {unsorted} NOT NULL
){compact};
CREATE INDEX jobs_by_status ON jobs (status, seq);
CREATE INDEX jobs_finished ON jobs (seq) WHERE finished_at IS NOT NULL;

CREATE TABLE idempotency (
  credential {text} NOT NULL,
  operation {text} NOT NULL,
  key {text} NOT NULL,
  fingerprint {text} NOT NULL,
  answer {bytes} NOT NULL,
  created_at {text} NOT NULL,
  PRIMARY KEY (credential, operation, key)
){compact};
CREATE INDEX idempotency_by_age ON idempotency (created_at);
"""

UPDATES = """
-- An update of a note is a job; the idempotency keys waiting for it get its outcome as their response.
ALTER TABLE jobs ADD COLUMN new_title {text};
ALTER TABLE jobs ADD COLUMN expected_version {whole};
CREATE INDEX jobs_updates ON jobs (document_id, seq) WHERE kind = 'update' AND finished_at IS NULL;

-- Set while the answer is not known yet: it is that of this job.
ALTER TABLE idempotency ADD COLUMN job_id {text} REFERENCES jobs (id) ON DELETE CASCADE;
CREATE INDEX idempotency_by_job ON idempotency (job_id) WHERE job_id IS NOT NULL;
"""

LANES = f"""
-- Jobs have a lane, a caller and a turn; waiting jobs keep their order.
ALTER TABLE jobs ADD COLUMN caller {{text}} NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN lane {{text}} NOT NULL DEFAULT 'long';
ALTER TABLE jobs ADD COLUMN turn {{whole}} NOT NULL DEFAULT 0;
UPDATE jobs SET turn = seq;
UPDATE jobs SET lane = 'short' WHERE kind = 'note' AND size_bytes <= {SHORT_BYTES};
CREATE INDEX jobs_by_turn ON jobs (status, lane, turn, seq);
CREATE INDEX jobs_by_caller ON jobs (caller, lane, status, turn);
"""  # noqa: S608

FAILED_JOBS = """
-- Failed jobs keep their bytes, crashes of engines are counted, and the duration of jobs is measured.
ALTER TABLE jobs ADD COLUMN retryable {truth} NOT NULL DEFAULT {false};
ALTER TABLE jobs ADD COLUMN crashes {small} NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN rests_until {text};
CREATE INDEX jobs_waiting ON jobs (seq, lane, kind, format, force_ocr, size_bytes)
  WHERE status = 'queued';
CREATE INDEX jobs_kept ON jobs (finished_at, seq) WHERE retryable;
CREATE TABLE measures (
  work {text} PRIMARY KEY,
  jobs {real} NOT NULL,
  bytes {real} NOT NULL,
  seconds {real} NOT NULL,
  squares {real} NOT NULL,
  products {real} NOT NULL
){compact};
"""

FEEDBACK = """
-- `opened` is 0 or 1; `rating` is 1 for useful, -1 for not useful, 0 if not rated.
CREATE TABLE feedback (
  document_id {whole} NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
  voice {text} NOT NULL,
  opened {small} NOT NULL,
  rating {small} NOT NULL,
  given_at {text} NOT NULL,
  PRIMARY KEY (document_id, voice)
){compact};
"""

LANGUAGES = """
-- The language of a document selects the stemmer; NULL: English, as before.
ALTER TABLE documents ADD COLUMN language {text};
CREATE INDEX documents_by_language ON documents (language) WHERE language IS NOT NULL;
"""

SOURCES = """
-- A source has one document. Jobs of a source run in order, and record their outcome. A document that was
-- also submitted without a source path is `unsourced`. If a document was moved to another collection, its
-- deduplication scope follows.
ALTER TABLE documents ADD COLUMN unsourced {truth} NOT NULL DEFAULT {false};
UPDATE documents SET unsourced = true
  WHERE id NOT IN (SELECT document_id FROM document_sources);
UPDATE documents SET dedup_scope = coalesce((
    SELECT tag FROM document_tags WHERE document_id = documents.id AND substr(tag, 1, 11) = 'collection:'
    ORDER BY id DESC LIMIT 1), dedup_scope)
  WHERE substr(dedup_scope, 1, 11) = 'collection:' AND NOT EXISTS (
    SELECT 1 FROM document_tags WHERE document_id = documents.id AND tag = dedup_scope);
ALTER TABLE jobs ADD COLUMN source_scope {text};
ALTER TABLE jobs ADD COLUMN outcome {text};
ALTER TABLE jobs ADD COLUMN left_out {text};
UPDATE jobs SET source_scope = dedup_scope WHERE source_path IS NOT NULL AND finished_at IS NULL;
CREATE INDEX jobs_by_source ON jobs (source_path, source_scope, seq) WHERE finished_at IS NULL;
"""

VERSIONS = """
-- Old versions of documents that were replaced or removed.
CREATE TABLE versions (
  id {number},
  document_id {whole} NOT NULL,
  uid {text} NOT NULL,
  version {whole} NOT NULL,
  removed {truth} NOT NULL,
  kept_at {text} NOT NULL,
  expires_at {text} NOT NULL,
  members {unsorted} NOT NULL,
  text {unsorted} NOT NULL,
  passages {unsorted} NOT NULL,
  vectors {bytes},
  UNIQUE (document_id, version)
);
CREATE INDEX versions_by_uid ON versions (uid);
CREATE INDEX versions_by_end ON versions (expires_at);
CREATE INDEX versions_removed ON versions (id) WHERE removed;
"""

REACH = "ALTER TABLE jobs ADD COLUMN reach {text}"
"""The access scope of a job's caller, as JSON; NULL: unrestricted."""

FIDELITY = "ALTER TABLE documents ADD COLUMN fidelity {text}"
"""The report of the reading of a file, as JSON; NULL for notes and earlier documents."""

QUESTIONS = """
-- Questions by day, and the texts of those that found nothing.
CREATE TABLE questions (
  day {text} PRIMARY KEY,
  total {whole} NOT NULL,
  unanswered {whole} NOT NULL
){compact};
CREATE TABLE question_texts (text {text} PRIMARY KEY, counted_at {text} NOT NULL){compact};
"""
