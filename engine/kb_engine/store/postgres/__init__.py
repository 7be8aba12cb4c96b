"""The store on PostgreSQL with pgvector: many engines on one base."""
