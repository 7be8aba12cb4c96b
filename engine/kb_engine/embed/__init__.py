"""Embedding of text: the interface of embedders (`protocol`), and their registry."""
