"""An embedder behind an endpoint that speaks OpenAI's API, with settings of its own."""
