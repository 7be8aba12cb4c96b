"""What the engine tells of itself."""

from __future__ import annotations

import shutil

from .database import Database, Row
from .jobs import ENDED
from .texts import DIMENSIONS


def status(database: Database, started_at: str) -> Row:
    """What `/status` tells."""
    types = database.rows("SELECT doc_type, count(*) AS n FROM documents GROUP BY doc_type")
    states = {
        row["status"]: row["n"]
        for row in database.rows("SELECT status, count(*) AS n FROM jobs GROUP BY status")
    }
    total = database.count("SELECT count(*) FROM documents")
    full = database.count("SELECT count(DISTINCT document) FROM chunks")
    changed = database.row("SELECT at FROM changes")
    return {
        "version": "v3.0.0",
        "model": {"name": "hashed-trigrams", "dimensions": DIMENSIONS, "max_tokens": 256, "loaded": True},
        "device": {"type": "cpu", "threads": 1},
        "documents": {
            "total": total, "searchable": full, "empty": total - full,
            "by_type": {row["doc_type"]: row["n"] for row in types},
        },
        "chunks": database.count("SELECT count(*) FROM chunks"),
        "queue": {name: states.get(name, 0) for name in ("queued", "running", *ENDED)},
        "storage": {
            "path": str(database.folder),
            "bytes": sum(file.stat().st_size for file in database.folder.glob("foreign.db*")),
            "free_bytes": shutil.disk_usage(database.folder).free,
            "originals_bytes": database.count("SELECT sum(size_bytes) FROM documents"),
            "accessible": True,
            # What failed is kept for good: there is no bound, which a very large one says.
            "failed_bytes": 0, "failed_bytes_limit": 2**63 - 1, "failed_seconds_limit": 3.15e9,
        },
        "issues": [], "started_at": started_at, "last_updated": changed["at"] if changed else None,
    }  # fmt: skip
