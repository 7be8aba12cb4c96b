"""Toolsets as MCP servers: the adapter to `mcp_aiohttp`, which is independent of kb.

`kb_server.hosting.http.build_app` and `kb_server.hosting.http.serve` serve them over a network; over stdio
`mcp_aiohttp.transport.stdio.serve_stdio` serves one made by `toolset_server.hosted`. They are not imported
here on purpose: a stdio server starts for every conversation, and must not import an HTTP server to do so.
"""
