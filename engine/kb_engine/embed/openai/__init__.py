"""An embedder behind an endpoint with OpenAI's API, and its settings."""
