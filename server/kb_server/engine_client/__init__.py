"""The server's view of the engine: a typed port, its faults, and an implementation over HTTP.

    tool -> Engine.call -> build_request -> HttpTransport: circuit breaker, attempts -> Pool -> decode
          `----------------------- raises only EngineFault -----------------------'

`client` imports the HTTP stack, `port` and `errors` do not: a stdio server starts for every conversation.

RAGler's backend is a port of its own, `ragler.Ragler`, with `ragler_http.HttpRagler` on the same transport:
the same attempts, circuit breaker and faults.
"""
