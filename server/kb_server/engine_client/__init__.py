"""The engine as the server sees it: a typed port, its faults, and one implementation over HTTP.

    tool -> Engine.call -> build_request -> HttpTransport: circuit, attempts -> Pool -> decode
                 `----------------- EngineFault, never anything else ----------------'

`client` imports the HTTP stack, `port` and `errors` do not: a stdio server starts for every conversation.
RAGler's backend is a port of its own, `ragler.Ragler`, with `ragler_http.HttpRagler` on the same transport:
the same attempts, circuit and faults.
"""
