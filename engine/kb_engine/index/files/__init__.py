"""The embedded index in files of its own: memory-mapped, immutable, derived from the store by generation."""
