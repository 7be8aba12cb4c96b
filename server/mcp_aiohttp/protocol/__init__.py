"""What the messages mean: JSON-RPC, protocol eras, a hosted server. Nothing here imports aiohttp."""
