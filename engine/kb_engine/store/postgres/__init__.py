"""The store on PostgreSQL with pgvector: many engines on one base."""

from __future__ import annotations

from kb_engine.parts import Part
from kb_engine.store.postgres.postgres_settings import PostgresSettings

PART = Part("postgres", PostgresSettings, store="kb_engine.store.postgres.configured")
