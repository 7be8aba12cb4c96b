"""Text into vectors: the protocol that every embedder keeps, and the registry of those there are.

Nothing is imported here, so that reading the settings is quick: an embedder's module is imported when the
setting names it.
"""
