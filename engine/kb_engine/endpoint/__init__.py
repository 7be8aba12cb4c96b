"""Calls of a service outside, over HTTP: an embedding or a reranking endpoint."""
