"""Defaults of the PostgreSQL store that the settings need; importing this module imports no driver."""

EXACT_BELOW = 20_000
"""Number of chunks from which the HNSW index is built. Comparing as many vectors with a query takes twice the
processor time of a search by the index, but costs inserts nothing.
"""
LEASE_SECONDS = 30.0
"""Lifetime of a lease without renewal, in seconds; then the jobs of the engine are free for all engines."""
