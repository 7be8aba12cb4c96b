"""The index of a PostgreSQL base: words as rows of postings, vectors in pgvector, found by the database.

It takes part in the store's transactions instead of following them: whatever engine searches, it reads one
snapshot of the database, and no vector travels.

    search.py    which of the two ways answers a query
    exact.py     every chunk that the filters leave gets its score, in one statement; or those of a list
    nearest.py   the nearest chunks by an HNSW index
    building.py  making that index in the background, and removing it
    words.py     the terms of a query, and which of them are looked up
    state.py     what scores depend on in one snapshot
"""

EXACT_BELOW = 20_000
"""Chunks in a base from which the HNSW index is made: to compare so many vectors with that of a question
takes twice the processor time of a search by the index, and costs inserts nothing."""
