"""The documents of one base: taken in, deduplicated, changed, listed, removed. No I/O, no time of its own.

Every stored document is immutable and replaced whole, so that a copy of the base is a copy of dictionaries.
Times are handed in, in microseconds since 1970.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from kb_contracts.api import models as m
from kb_contracts.semantics.documents import (
    check_version,
    document_not_found,
    not_a_note,
    tag_not_found,
    tags_to_unite,
    text_digest,
    title_after_update,
)
from kb_readers import Extraction
from kb_simulator.engine.chunking import passages, text_of
from kb_simulator.engine.index import Index
from kb_simulator.engine.submission import Submission, text_of_note
from kb_simulator.engine.timestamps import rfc3339
from kb_simulator.seeded import Seeded

NO_TEXT = "No text was found. A scan needs OCR, which the simulator does not do."

DedupKey = tuple[str, str, str]
"""Kind, SHA-256 and scope: what two submissions of the same thing have in common."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A document with its text and its chunks, in order."""

    document: m.Document
    text: str
    chunks: tuple[m.Chunk, ...]
    dedup_key: DedupKey
    created: int
    updated: int
    summary: m.DocumentSummary = field(init=False)
    """The document as it stands beside a search's results."""

    def __post_init__(self) -> None:
        names = m.DocumentSummary.__struct_fields__
        summary = m.DocumentSummary(**{name: getattr(self.document, name) for name in names})
        object.__setattr__(self, "summary", summary)


@dataclass(slots=True)
class Documents:
    """The documents by id, and the index over their chunks. `revision` is raised by every change."""

    seeded: Seeded
    by_id: dict[int, Stored] = field(default_factory=dict)
    index: Index = field(default_factory=Index)
    owners: dict[int, tuple[int, int]] = field(default_factory=dict)  # chunk id: document id, place in it
    revision: int = 0
    last_updated: int | None = None
    _by_uid: dict[str, int] = field(default_factory=dict)
    _by_content: dict[DedupKey, list[int]] = field(default_factory=dict)
    _next_id: int = 1
    _next_chunk: int = 1

    def copy(self) -> Documents:
        """A base that lives on by itself."""
        return replace(
            self,
            by_id=dict(self.by_id),
            index=self.index.copy(),
            owners=dict(self.owners),
            _by_uid=dict(self._by_uid),
            _by_content={key: list(ids) for key, ids in self._by_content.items()},
        )

    def find(self, key: int | str) -> Stored:
        """By number or uid. Raises EngineError: `document_not_found`."""
        document_id = self._by_uid.get(key) if isinstance(key, str) else key
        if document_id is None or (stored := self.by_id.get(document_id)) is None:
            raise document_not_found(key)
        return stored

    # taking in

    def take_in(self, submission: Submission, content: Extraction, uid: str, now: int) -> tuple[Stored, bool]:
        """The document of a submission, and whether it was there already."""
        key = (submission.kind, submission.sha256, submission.dedup_scope)
        if (twin := self._twin(key, submission)) is not None:
            return self._united(twin, submission, now), True
        document_id, self._next_id = self._next_id, self._next_id + 1
        title = submission.document_title
        text, chunks = self._chunks(content, uid, version=1)
        paths = [submission.source_path] if submission.source_path is not None else []
        document = m.Document(
            id=document_id,
            uid=uid,
            title=title,
            doc_type=submission.doc_type,
            format=submission.format,
            filename=submission.filename,
            source_path=submission.source_path,
            source_paths=paths,
            size_bytes=submission.size_bytes,
            sha256=submission.sha256,
            tags=list(submission.tags),
            metadata=dict(submission.metadata or {}),
            status="searchable" if chunks else "empty",
            status_reason=None if chunks else NO_TEXT,
            extraction_method=content.method,
            pages=content.page_count,
            chunk_count=len(chunks),
            version=1,
            created_at=rfc3339(now),
            updated_at=rfc3339(now),
        )
        stored = Stored(document, text, chunks, key, now, now)
        self._swap(None, stored, now)
        return stored, False

    def _twin(self, key: DedupKey, submission: Submission) -> Stored | None:
        """The oldest document of the same content in the same scope.

        Where the scope is a tag of the submission (a collection), one that has been moved out of it since is
        no twin.
        """
        scope = submission.dedup_scope
        twins = (self.by_id[document_id] for document_id in sorted(self._by_content.get(key, ())))
        if scope in submission.tags:
            twins = (twin for twin in twins if scope in twin.document.tags)
        return next(twins, None)

    def _united(self, stored: Stored, submission: Submission, now: int) -> Stored:
        """The standing document with the further tags and path of its twin."""
        tags = [*stored.document.tags, *tags_to_unite(stored.document.tags, submission.tags)]
        paths = list(stored.document.source_paths)
        if submission.source_path is not None and submission.source_path not in paths:
            paths.append(submission.source_path)
        if tags == stored.document.tags and paths == stored.document.source_paths:
            return stored
        return self._changed(stored, stored, now, tags=tags, source_paths=paths)

    # changing

    def note(self, document_id: int, expected: int | None) -> Stored:
        """A note of the `expected` version, None: of any.

        Raises EngineError: `document_not_found`, `not_a_note` or `version_conflict`.
        """
        stored = self.find(document_id)
        if stored.document.doc_type != "note":
            raise not_a_note(document_id)
        check_version(stored.document, expected)
        return stored

    def replace_note(self, document_id: int, patch: m.NotePatch, now: int) -> Stored:
        """Raises as `note`."""
        stored, text = self.note(document_id, patch.expected_version), patch.text
        new_text = stored.text if text is None else text
        new_title = patch.title or title_after_update(stored.document.title, stored.text, new_text)
        _, chunks = self._chunks(text_of_note(new_text), stored.document.uid, stored.document.version + 1)
        digest, size = text_digest(new_text)
        key = (stored.dedup_key[0], digest, stored.dedup_key[2])
        return self._changed(
            stored,
            replace(stored, text=new_text, chunks=chunks, dedup_key=key),
            now,
            title=new_title,
            size_bytes=size,
            sha256=digest,
            chunk_count=len(chunks),
            status="searchable" if chunks else "empty",
            status_reason=None if chunks else NO_TEXT,
        )

    def add_tags(self, key: int | str, tags: Sequence[str], expected: int | None, now: int) -> Stored:
        """Raises EngineError: `document_not_found` or `version_conflict`. Nothing new: nothing changes."""
        stored = self.find(key)
        check_version(stored.document, expected)
        further = [tag for tag in dict.fromkeys(tags) if tag not in stored.document.tags]
        if not further:
            return stored
        return self._changed(stored, stored, now, tags=[*stored.document.tags, *further])

    def remove_tag(self, key: int | str, tag: str, expected: int | None, now: int) -> Stored:
        """Raises EngineError: `document_not_found`, `tag_not_found` or `version_conflict`."""
        stored = self.find(key)
        check_version(stored.document, expected)
        if tag not in stored.document.tags:
            raise tag_not_found(tag)
        kept = [each for each in stored.document.tags if each != tag]
        return self._changed(stored, stored, now, tags=kept)

    def remove(self, keys: Iterable[int | str], now: int) -> m.Removed:
        """Take documents away. Raises EngineError: `document_not_found`."""
        removed = m.Removed(documents=0, chunks=0, bytes=0)
        for stored in [self.find(key) for key in keys]:
            self._swap(stored, None, now)
            removed.documents += 1
            removed.chunks += len(stored.chunks)
            removed.bytes += stored.document.size_bytes
        self.last_updated = now
        return removed

    # looking

    def page(
        self,
        matches: Callable[[m.Document], bool],
        *,
        sort_by: m.SortBy,
        descending: bool,
        limit: int,
        offset: int,
    ) -> m.DocumentList:
        """One page of the documents that match, equals by id in the same direction."""
        found = [stored.document for stored in self.by_id.values() if matches(stored.document)]
        found.sort(key=lambda document: (_place(document, sort_by), document.id), reverse=descending)
        return m.DocumentList(
            documents=found[offset : offset + limit], total=len(found), limit=limit, offset=offset
        )

    def tags(self, prefix: str, limit: int, offset: int) -> m.TagList:
        """Tags in use, in alphabetical order."""
        documents: Counter[str] = Counter()
        chunks: Counter[str] = Counter()
        for stored in self.by_id.values():
            for tag in stored.document.tags:
                documents[tag] += 1
                chunks[tag] += len(stored.chunks)
        names = sorted(tag for tag in documents if tag.startswith(prefix))
        counts = [m.TagCount(tag=tag, documents=documents[tag], chunks=chunks[tag]) for tag in names]
        return m.TagList(tags=counts[offset : offset + limit], total=len(counts), limit=limit, offset=offset)

    def counts(self) -> m.DocumentCounts:
        """Documents by state and by type."""
        states = Counter(stored.document.status for stored in self.by_id.values())
        return m.DocumentCounts(
            total=len(self.by_id),
            searchable=states["searchable"],
            empty=states["empty"],
            by_type=dict(Counter(stored.document.doc_type for stored in self.by_id.values())),
        )

    def around(self, chunk_id: int, neighbors: int) -> tuple[Stored, m.Chunk, list[m.Chunk], list[m.Chunk]]:
        """A chunk with its document and up to `neighbors` chunks before and after it."""
        document_id, place = self.owners[chunk_id]
        stored = self.by_id[document_id]
        before = list(stored.chunks[max(0, place - neighbors) : place])
        return stored, stored.chunks[place], before, list(stored.chunks[place + 1 : place + 1 + neighbors])

    # inside

    def _chunks(self, content: Extraction, uid: str, version: int) -> tuple[str, tuple[m.Chunk, ...]]:
        found = passages(content.pages, headings=content.is_markdown)
        first, self._next_chunk = self._next_chunk, self._next_chunk + len(found)
        chunks = tuple(
            m.Chunk(
                id=first + place,
                uid=self.seeded.uuid("chunk", uid, version, place),
                index=place,
                text=passage.text,
                page=passage.page,
                heading=passage.heading,
                start=passage.start,
                end=passage.end,
            )
            for place, passage in enumerate(found)
        )
        return text_of(content.pages), chunks

    def _changed(self, old: Stored, new: Stored, now: int, **changes: Any) -> Stored:
        """`new` in the place of `old`, with further `changes`, one version on."""
        document = msgspec.structs.replace(
            new.document, version=old.document.version + 1, updated_at=rfc3339(now), **changes
        )
        new = replace(new, document=document, updated=now)
        self._swap(old, new, now)
        return new

    def _swap(self, old: Stored | None, new: Stored | None, now: int) -> None:
        """Take `old` out and put `new` in, in the index too where what it holds is different."""
        same_words = old and new and old.chunks is new.chunks and old.document.title == new.document.title
        if old is not None:
            del self.by_id[old.document.id]
            del self._by_uid[old.document.uid]
            self._by_content[old.dedup_key].remove(old.document.id)
            if not same_words:
                self._unindex(old)
        if new is not None:
            self.by_id[new.document.id] = new
            self._by_uid[new.document.uid] = new.document.id
            self._by_content.setdefault(new.dedup_key, []).append(new.document.id)
            if not same_words:
                self._index(new)
        self.revision += 1
        self.last_updated = now

    def _index(self, stored: Stored) -> None:
        title = stored.document.title  # twice: a word in a title says more
        for place, chunk in enumerate(stored.chunks):
            self.owners[chunk.id] = (stored.document.id, place)
            self.index.add(chunk.id, f"{title}\n{title}\n{chunk.heading or ''}\n{chunk.text}")

    def _unindex(self, stored: Stored) -> None:
        for chunk in stored.chunks:
            del self.owners[chunk.id]
            self.index.remove(chunk.id)


def _place(document: m.Document, sort_by: m.SortBy) -> Any:
    """What a list sorts a document by."""
    if sort_by == "filename":
        return document.filename or document.title
    return getattr(document, sort_by)
