"""Reranking of the best candidates of a search, by a model that reads query and passage together."""
