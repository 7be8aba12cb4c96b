"""How messages come and go: HTTP and WebSocket on aiohttp, stdin and stdout."""
