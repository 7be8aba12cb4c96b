"""Serves toolsets over MCP, in both protocol eras: over HTTP and WebSocket on aiohttp, and over stdio.

`kb_server.hosting.http.build_app` and `kb_server.hosting.serve.serve` are the one way in,
`kb_server.hosting.stdio.serve_stdio` the other. They are not gathered here on purpose: a stdio server
starts for every conversation, and must not import an HTTP server to do so.
"""
