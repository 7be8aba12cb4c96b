"""The index of a SQLite base: words and vectors in memory-mapped files beside it, derived from it."""
