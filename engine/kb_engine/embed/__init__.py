"""Text into vectors: what every embedder keeps (`protocol`), and the registry of those there are."""
