"""The search index: words and vectors, derived from the store and rebuilt from it at any time."""
