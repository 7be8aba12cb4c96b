"""Chunked uploads: bytes from agents, staged on disk until they are complete, then streamed to the engine.

upload   the state of an upload and the checks on it: pure
staging  the files on disk, shared by the workers of a server: blocking
service  the operations for the tools and the upload URL
routes   the upload URL; separate, because only HTTP hosting needs aiohttp's server
"""
