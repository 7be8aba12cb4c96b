"""The transports: HTTP and WebSocket on aiohttp, stdin and stdout."""
