"""The engine of kb: an HTTP API over a durable store that finds passages by words and by meaning."""
