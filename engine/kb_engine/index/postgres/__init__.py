"""The index of a PostgreSQL base: words as rows of postings, vectors in pgvector, scored by the database.

It takes part in the store's transactions instead of following them: whatever engine searches, it reads one
snapshot of the database, and no vector travels.
"""
