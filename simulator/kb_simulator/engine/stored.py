"""A document as it is kept here, with its text and its chunks.

It is immutable and replaced whole, so that a copy of the base is a copy of dictionaries.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kb_contracts.api import models as m
from kb_contracts.semantics.sources import Holder

DedupKey = tuple[str, str, str]
"""Kind, SHA-256 (of a file) or `note_hash`, and scope: what two submissions of the same thing share."""


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
    """Whether it was also submitted without a source path."""
    original: bytes | None = None
    """The file that it was made of, where that is kept."""
    summary: m.DocumentSummary = field(init=False)
    """The document as it stands beside a search's results."""

    def __post_init__(self) -> None:
        names = m.DocumentSummary.__struct_fields__
        summary = m.DocumentSummary(**{name: getattr(self.document, name) for name in names})
        object.__setattr__(self, "summary", summary)

    @property
    def holder(self) -> Holder:
        return Holder(self.document.id, self.document.source_paths, self.unsourced)
