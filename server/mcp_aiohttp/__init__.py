"""MCP on aiohttp, for any server of the official Python SDK.

The SDK (version 2) implements the protocol; this package carries it: over HTTP, WebSocket and stdio, in both
protocol eras, without sessions over HTTP, and with the checks that a server on a network needs. It is
independent of the hosted server: any `mcp.server.lowlevel.Server` or `MCPServer` can be hosted, in one line.

```
transport/  HTTP and WebSocket on aiohttp, stdio, and the runner of the application
protocol/   JSON-RPC, the choice of the era, a hosted server, a session on one connection
guard       admission: the key, Host and Origin, proxies
fastpath    plain tool calls past the SDK's kernel, for servers that offer it
```

`mcp_aiohttp.transport.http.build_app` and `mcp_aiohttp.transport.http.serve` serve over a network,
`mcp_aiohttp.transport.stdio.serve_stdio` on stdin and stdout. They are not imported here on purpose: a stdio
server starts for every conversation, and must not import an HTTP server to do so.
"""
