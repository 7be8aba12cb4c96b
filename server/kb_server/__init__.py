"""The MCP server of kb: hosting, toolsets, the engine client, uploads and collections."""
