"""The protocol: JSON-RPC, protocol eras, a hosted server. Nothing here imports aiohttp."""
