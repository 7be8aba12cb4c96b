"""Chunked uploads: bytes from agents, staged on disk until they are whole, then streamed to the engine.

upload   what an upload is, and the checks on it: pure
staging  what lies on disk of it, shared by the workers of a server: blocking
service  what the tools and the upload URL call
routes   the upload URL; apart, because only HTTP hosting needs aiohttp's server
"""
