"""Chunked uploads: bytes from agents, staged on disk until they are whole, then streamed to the engine.

`routes` is in `kb_server.uploads.routes` and not gathered here: only HTTP hosting needs aiohttp's server.
"""

from kb_server.uploads.service import Finished, Limits, NewUpload, Received, Started, Uploads
from kb_server.uploads.staging import remove_dead
from kb_server.uploads.upload import CHUNK_BYTES, MAX_CHUNKS, Upload, UploadError

__all__ = [
    "CHUNK_BYTES",
    "MAX_CHUNKS",
    "Finished",
    "Limits",
    "NewUpload",
    "Received",
    "Started",
    "Upload",
    "UploadError",
    "Uploads",
    "remove_dead",
]
