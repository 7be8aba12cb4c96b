"""The store's own index for SQLite: words and vectors in memory-mapped files beside the base."""
