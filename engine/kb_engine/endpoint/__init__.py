"""HTTP client for external services: embedding and reranking endpoints."""
