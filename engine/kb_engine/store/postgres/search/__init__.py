"""The own index of PostgreSQL: words as rows of postings, vectors in pgvector, searched by the database.

It takes part in the store's transactions: a search on any engine reads one snapshot of the database, and no
vector is transferred.

    hybrid.py    chooses between the two methods for a query
    exact.py     scores every chunk that passes the filters in one statement, or the chunks of a list
    nearest.py   finds the nearest chunks by an HNSW index
    building.py  builds that index in the background, and removes it
    words.py     the terms of a query, and the selection of terms to look up
    state.py     the statistics of one snapshot that scores depend on
"""
