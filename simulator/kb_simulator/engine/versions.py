"""Earlier versions of documents, kept when they are replaced or removed."""

from __future__ import annotations

from dataclasses import dataclass, field

from kb_contracts.api import models as m
from kb_contracts.api.operations import PageQuery, VersionQuery
from kb_contracts.semantics.versions import KEPT_DAYS, KEPT_VERSIONS, check_version_kept
from kb_simulator.determinism import rfc3339
from kb_simulator.engine.stored import Stored

_KEPT_MICROSECONDS = int(KEPT_DAYS * 86_400_000_000)
_LISTED = [name for name in m.PastVersion.__struct_fields__ if name in m.Document.__struct_fields__]


@dataclass(frozen=True, slots=True)
class Past:
    """A document as it was until `kept`, in microseconds since 1970; `removed`: it was then removed."""

    stored: Stored
    kept: int
    removed: bool

    def listed(self) -> m.PastVersion:
        document = self.stored.document
        return m.PastVersion(
            document_id=document.id,
            removed=self.removed,
            kept_at=rfc3339(self.kept),
            expires_at=rfc3339(self.kept + _KEPT_MICROSECONDS),
            **{name: getattr(document, name) for name in _LISTED},
        )


@dataclass(slots=True)
class History:
    """The versions of each document by its id, the latest last."""

    by_id: dict[int, tuple[Past, ...]] = field(default_factory=dict)

    def copy(self) -> History:
        return History(dict(self.by_id))

    def keep(self, stored: Stored, now: int, *, removed: bool = False) -> None:
        """Keep a version of a document, and discard the oldest beyond the limit."""
        kept = (*self.by_id.get(stored.document.id, ()), Past(stored, now, removed))
        self.by_id[stored.document.id] = kept[-KEPT_VERSIONS:]

    def drop(self, document_id: int) -> int:
        """Discard the history of a document and return its number of versions."""
        return len(self.by_id.pop(document_id, ()))

    def bring_back(self, document_id: int, version: int) -> None:
        """Clear the removal mark of this version after the document was restored."""
        kept = self.by_id[document_id]
        self.by_id[document_id] = tuple(
            Past(each.stored, each.kept, removed=False)
            for each in kept
            if not (each.removed and each.stored.document.version == version)
        )

    def number(self, key: int | str, now: int) -> int | None:
        """Return the id of a document with a kept version, by id or uid, or None."""
        for document_id in self.by_id:
            kept = self._kept(document_id, now)
            if kept and key in (document_id, kept[0].stored.document.uid):
                return document_id
        return None

    def find(self, document_id: int, version: int, now: int) -> Past:
        """Return a kept version."""
        kept = {each.stored.document.version: each for each in self._kept(document_id, now)}
        check_version_kept(version, list(kept))
        return kept[version]

    def last(self, document_id: int, now: int) -> int:
        """The highest kept version of a document."""
        return max(each.stored.document.version for each in self._kept(document_id, now))

    def page(self, document_id: int, query: PageQuery, now: int) -> m.PastVersionList:
        """The versions of a document, the latest first."""
        return _page(self._kept(document_id, now), query)

    def trash(self, query: PageQuery, now: int) -> m.PastVersionList:
        """The removed documents, the latest removal first."""
        gone = [each for number in self.by_id for each in self._kept(number, now) if each.removed]
        return _page(sorted(gone, key=lambda each: each.kept), query)

    def detail(self, document_id: int, version: int, query: VersionQuery, now: int) -> m.PastVersionDetail:
        """Return a version with a part of its text."""
        past = self.find(document_id, version, now)
        document, listed = past.stored.document, past.listed()
        text = _text_of(past.stored)
        return m.PastVersionDetail(
            **{name: getattr(listed, name) for name in m.PastVersion.__struct_fields__},
            metadata=document.metadata,
            text=text[query.text_offset : query.text_offset + query.text_limit],
            text_offset=query.text_offset,
            text_length=len(text),
        )

    def _kept(self, document_id: int, now: int) -> list[Past]:
        kept = self.by_id.get(document_id, ())
        return [each for each in kept if each.kept + _KEPT_MICROSECONDS > now]


def _page(oldest_first: list[Past], query: PageQuery) -> m.PastVersionList:
    found = oldest_first[::-1]
    page = [each.listed() for each in found[query.offset : query.offset + query.limit]]
    return m.PastVersionList(versions=page, total=len(found), limit=query.limit, offset=query.offset)


def _text_of(stored: Stored) -> str:
    """The text of a note as it was sent; for a file the text of its passages, each at its offset."""
    if stored.document.doc_type == "note":
        return stored.text
    text = ""
    for chunk in stored.chunks:
        text += "\n" * (chunk.start - len(text)) + chunk.text
    return text
