"""Settings of more than one part, which do not import one another; each gives its own default."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from kb_config.settings import Setting, expanded

EnableMetrics = Annotated[bool, Setting("ENABLE_METRICS", "serve Prometheus metrics at /metrics")]
EngineKey = Annotated[
    str, Setting("KB_API_KEY", "bearer key required from callers; empty: none", secret=True)
]
KeepOriginals = Annotated[bool, Setting("KB_KEEP_ORIGINALS", "keep original files, identical ones once")]
Keys = Annotated[str, Setting("KB_KEYS", "key file; empty: keys.json in the data folder")]
LogLevel = Annotated[
    str,
    Setting("LOG_LEVEL", "log level: debug, info, warn or error", choices=("debug", "info", "warn", "error")),
]
PublishedCollections = Annotated[
    str,
    Setting(
        "KB_PUBLISHED_COLLECTIONS", "collections readable by the role service, by NAME or PREFIX*; empty: all"
    ),
]
UploadBytes = Annotated[
    int, Setting("KB_MAX_UPLOAD_BYTES", "maximum size of an upload, in bytes"), msgspec.Meta(ge=1)
]

HEADER_TIMEOUT = {"KB_HEADER_TIMEOUT": "the header of a request must arrive within 10 s"}
"""For `Settings.REMOVED` of the parts that listen."""

DEFAULT_UPLOAD_BYTES = 100 * 1024 * 1024


def keys_file(keys: str, home: Path) -> Path:
    """Return the path of the key file, from `Keys` and the data folder."""
    return expanded("KB_KEYS", keys) if keys else home / "keys.json"


def addresses(urls: str) -> list[str]:
    """Return the base URLs in a setting that takes one, or several separated by commas."""
    return [url.strip().rstrip("/") for url in urls.split(",") if url.strip()] or [""]
