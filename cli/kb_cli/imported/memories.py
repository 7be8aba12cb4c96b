"""The JSON of mcp-memory-service: its export of a database (12.x), and that of its dashboard.

    {"export_metadata": {...}, "memories": [{"content": ..., "content_hash": ..., "tags": [...],
     "memory_type": ..., "metadata": {...}, "created_at": 1795518916.35, "updated_at": ..., "store": ...}]}

The dashboard writes `export_date` in place of `export_metadata`. Vectors are ignored, since they come from
another model. An unreadable memory is reported by its number, and the rest is imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from kb_cli import foreign_tags
from kb_cli.add import Result, Written
from kb_cli.imported import NotOfKind
from kb_cli.imported.bookmarks import time_of
from kb_cli.properties import Details
from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.semantics.documents import check_metadata

KIND: Literal["mcp-memory-service"] = "mcp-memory-service"
LARGEST = 256 * 2**20
"""Maximum size of an export, which is read as a whole, in bytes."""


class Memory(msgspec.Struct, frozen=True):
    """A memory with the members that kb uses. Times are seconds since 1970."""

    content: str
    content_hash: str | None = None
    tags: list[str] | str | None = None
    memory_type: str | None = None
    metadata: dict[str, Any] | None = None
    created_at: float | None = None
    updated_at: float | None = None
    store: str | None = None


def read(path: Path) -> list[Any]:
    """Return the memories of an export, each as it is written.

    Exports may have NaN and halves of surrogate pairs: only the memory concerned fails, not the whole file.

    Raises:
        NotOfKind: it is not JSON, has no memories, or is too large.
        OSError: the file cannot be read.
    """
    if (size := path.stat().st_size) > LARGEST:
        raise NotOfKind(f"{size:,} bytes are too many; export in parts, of at most {LARGEST:,} bytes")
    try:
        export = json.loads(path.read_bytes().decode("utf-8-sig", "surrogateescape"))
    except (ValueError, RecursionError) as error:
        raise NotOfKind(str(error)) from error
    found = export.get("memories") if isinstance(export, dict) else None
    if not isinstance(found, list):
        raise NotOfKind("it has no list of memories")
    return found


def texts(memories: list[Any], taken: int) -> Iterator[Written | Result]:
    """Yield each memory as it is sent, or why it is skipped. `taken` is the number of common tags."""
    for number, written in enumerate(memories, 1):
        label = f"memory {number}"
        try:
            memory = msgspec.convert(written, Memory)
            msgspec.json.encode(memory)
        except (msgspec.ValidationError, OverflowError, RecursionError) as error:
            yield Result(label, "failed", reason=str(error))
            continue
        except UnicodeEncodeError:
            yield Result(label, "failed", reason="it has invalid characters")
            continue
        if memory.content_hash:
            label = f"{label} ({memory.content_hash[:12]})"
        if not memory.content.strip():
            yield Result(label, "failed", reason="it has no text")
        elif len(memory.content) > m.MAX_NOTE_CHARS:
            reason = f"its text has more than {m.MAX_NOTE_CHARS:,} characters; add it as a file, with kb add"
            yield Result(label, "failed", reason=reason)
        else:
            yield Written(label, memory.content, _details(memory, taken))


def _details(memory: Memory, taken: int) -> Details:
    listed = memory.tags.split(",") if isinstance(memory.tags, str) else memory.tags or []
    kept, left_out, notes = foreign_tags.sorted_out((tag.strip() for tag in listed if tag.strip()), taken)
    known = {
        "memory_type": memory.memory_type,
        "content_hash": memory.content_hash,
        "store": memory.store,
        "created": time_of(memory.created_at),
        "updated": time_of(memory.updated_at),
        **left_out,
    }
    base = {"imported_from": KIND, **{name: value for name, value in known.items() if value}}
    metadata = {**base, "metadata": memory.metadata} if memory.metadata else base
    try:
        check_metadata(metadata)
    except EngineError as error:
        metadata = base
        notes.append(f"its own metadata are left out: {error.detail}")
    return Details(tags=kept, metadata=metadata, notes=notes)
