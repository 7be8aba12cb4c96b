"""The index of a SQLite base: words in FTS5, in the base itself, and vectors exactly, in memory.

It takes part in the store's transactions instead of following them: one commit, synced once, makes rows,
words and vectors visible together, and a search reads all three in one state.
"""
