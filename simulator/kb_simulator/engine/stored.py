"""A stored document with its text and its chunks.

It is immutable and replaced as a whole, so that copying the base copies only dictionaries.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kb_contracts.api import models as m
from kb_contracts.semantics.sources import Holder

DedupKey = tuple[str, str, str]
"""Kind, SHA-256 (of a file) or `note_hash`, and scope: equal for two submissions of the same content."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A document with its text and its chunks, in order."""

    document: m.Document
    text: str
    chunks: tuple[m.Chunk, ...]
    dedup_key: DedupKey
    created: int
    updated: int
    unsourced: bool
    """True if it was also submitted without a source path."""
    original: bytes | None = None
    """The original file, if it is kept."""
    summary: m.DocumentSummary = field(init=False)
    """The document as a search's results show it."""

    def __post_init__(self) -> None:
        names = m.DocumentSummary.__struct_fields__
        summary = m.DocumentSummary(**{name: getattr(self.document, name) for name in names})
        object.__setattr__(self, "summary", summary)

    @property
    def holder(self) -> Holder:
        return Holder(self.document.id, self.document.source_paths, self.unsourced)
