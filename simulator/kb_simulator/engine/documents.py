"""The documents of one knowledge base: lookup, listing, changes, removal and history.

No I/O and no clock: times are passed in, in microseconds since 1970.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from kb_contracts.access.reach import Reach
from kb_contracts.api import models as m
from kb_contracts.api.operations import DocumentQuery, DocumentsQuery
from kb_contracts.semantics import documents as rules
from kb_contracts.semantics.access import check_changes, check_stays
from kb_contracts.semantics.feedback import Vote, Votes, feedback_of, tally, voted
from kb_contracts.semantics.search import GONE, checked, find_quote, headings_of
from kb_contracts.semantics.sources import scope_after_removal, scope_after_tags, source_not_found
from kb_simulator.determinism import Seeded, rfc3339
from kb_simulator.engine.index import Index
from kb_simulator.engine.stored import DedupKey, Stored
from kb_simulator.engine.versions import History


@dataclass(slots=True)
class Documents:
    """The documents by id, and the index over their chunks. `revision` increases with every change."""

    seeded: Seeded
    by_id: dict[int, Stored] = field(default_factory=dict)
    index: Index = field(default_factory=Index)
    owners: dict[int, tuple[int, int]] = field(default_factory=dict)  # chunk id: document id, position in it
    revision: int = 0
    last_updated: int | None = None
    history: History = field(default_factory=History)
    _votes: dict[int, dict[str, Vote]] = field(default_factory=dict)  # by document id and voice
    _by_uid: dict[str, int] = field(default_factory=dict)
    _by_content: dict[DedupKey, list[int]] = field(default_factory=dict)
    _next_id: int = 1
    _next_chunk: int = 1

    def copy(self) -> Documents:
        """Return an independent copy."""
        return replace(
            self,
            by_id=dict(self.by_id),
            index=self.index.copy(),
            owners=dict(self.owners),
            history=self.history.copy(),
            _votes={number: dict(votes) for number, votes in self._votes.items()},
            _by_uid=dict(self._by_uid),
            _by_content={key: list(ids) for key, ids in self._by_content.items()},
        )

    def number(self, key: int | str, now: int) -> int:
        """Return the id of a document that exists, or whose history is kept."""
        standing = self._by_uid.get(key) if isinstance(key, str) else key
        found = standing if standing in self.by_id else self.history.number(key, now)
        if found is None:
            raise rules.document_not_found(key)
        return found

    def find(self, key: int | str) -> Stored:
        """Return the document with this number or uid."""
        document_id = self._by_uid.get(key) if isinstance(key, str) else key
        if document_id is None or (stored := self.by_id.get(document_id)) is None:
            raise rules.document_not_found(key)
        return stored

    def with_content(self, key: DedupKey) -> Iterator[Stored]:
        """Yield the documents with the same content in the same scope, the oldest first."""
        for document_id in sorted(self._by_content.get(key, ())):
            yield self.by_id[document_id]

    def kept_bytes(self) -> int:
        """Total size of the stored original files in bytes, each content counted once."""
        past = (each.stored for kept in self.history.by_id.values() for each in kept)
        everything = [*self.by_id.values(), *past]
        sizes = {each.dedup_key[1]: len(each.original) for each in everything if each.original is not None}
        return sum(sizes.values())

    # changing

    def note(self, document_id: int, *expected: int | None) -> Stored:
        """Return a note, checking that it has each `expected` version; None accepts any."""
        stored = self.find(document_id)
        if stored.document.doc_type != "note":
            raise rules.not_a_note(document_id)
        rules.check_version(stored.document.version, *expected)
        return stored

    def set_metadata(
        self, key: int | str, metadata: dict[str, Any], expected: int | None, now: int
    ) -> Stored:
        """Replace the metadata. Equal metadata change nothing."""
        stored = self.find(key)
        rules.check_version(stored.document.version, expected)
        if metadata == stored.document.metadata:
            return stored
        return self.change(stored, stored, now, metadata=metadata)

    def add_tags(
        self, key: int | str, tags: Sequence[str], expected: int | None, now: int, reach: Reach | None = None
    ) -> Stored:
        """Add tags. Without a new tag nothing changes."""
        stored = self.find(key)
        rules.check_version(stored.document.version, expected)
        check_changes(reach, tags)
        rules.check_tags_fit(stored.document.tags, tags)
        return self._add_tags(stored, tags, now)

    def _add_tags(self, stored: Stored, tags: Sequence[str], now: int) -> Stored:
        further = [tag for tag in dict.fromkeys(tags) if tag not in stored.document.tags]
        if not further:
            return stored
        kind, sha256, scope = stored.dedup_key
        new = replace(stored, dedup_key=(kind, sha256, scope_after_tags(scope, further)))
        return self.change(stored, new, now, tags=[*stored.document.tags, *further])

    def remove_tag(
        self,
        key: int | str,
        tag: str,
        expected: int | None,
        now: int,
        reach: Reach | None = None,
        add: str | None = None,
    ) -> Stored:
        """Remove a tag and then add another one, if given."""
        stored = self.find(key)
        rules.check_version(stored.document.version, expected)
        added = [] if add is None else [add]
        check_changes(reach, [tag, *added])
        check_stays(reach, [*(each for each in stored.document.tags if each != tag), *added])
        if tag not in stored.document.tags:
            raise rules.tag_not_found(tag)
        kept = [each for each in stored.document.tags if each != tag]
        kind, sha256, scope = stored.dedup_key
        new = replace(stored, dedup_key=(kind, sha256, scope_after_removal(scope, tag, [*kept, *added])))
        removed = self.change(stored, new, now, tags=kept)
        return self._add_tags(removed, added, now)

    def give_feedback(self, key: int | str, voice: str, signal: m.Signal) -> m.Feedback:
        """Record a user's feedback on a document."""
        number = self.find(key).document.id
        votes = self._votes.setdefault(number, {})
        votes[voice] = voted(votes.get(voice), signal)
        return feedback_of(number, tally(votes.values()))

    def votes(self) -> dict[int, Votes]:
        """The feedback by document id."""
        return {number: tally(votes.values()) for number, votes in self._votes.items()}

    def remove_one(
        self, key: int | str, now: int, expected: int | None = None, *, purge: bool = False
    ) -> m.Removed:
        """Remove one document."""
        document = self.find(key).document
        rules.check_version(document.version, expected)
        removed = self.remove([key], now, purge=purge)
        removed.document_id, removed.document_uid = document.id, document.uid
        return removed

    def remove(self, keys: Iterable[int | str], now: int, *, purge: bool = False) -> m.Removed:
        """Remove documents, and with `purge` their history."""
        removed = m.Removed(documents=0, chunks=0, bytes=0)
        for stored in [self.find(key) for key in keys]:
            self.take_out(stored, now)
            if purge:
                self.history.drop(stored.document.id)
            removed.documents += 1
            removed.chunks += len(stored.chunks)
            removed.bytes += stored.document.size_bytes
        self.last_updated = now
        return removed

    def remove_source(self, key: int | str, path: str, expected: int | None, now: int) -> m.Removed:
        """Remove a source path, and the document with its last source."""
        stored = self.find(key)
        rules.check_version(stored.document.version, expected)
        if path not in stored.document.source_paths:
            raise source_not_found(path)
        if stored.holder.goes_with(path):
            return self.remove_one(key, now)
        self.detach(stored, path, now)
        document = stored.document
        return m.Removed(documents=0, chunks=0, bytes=0, document_id=document.id, document_uid=document.uid)

    def detach(self, stored: Stored, path: str | None, now: int) -> None:
        left = [each for each in stored.document.source_paths if each != path]
        self.change(stored, stored, now, source_path=next(iter(left), None), source_paths=left)

    def take_out(self, stored: Stored, now: int) -> None:
        self.history.keep(stored, now, removed=True)
        self.swap(stored, None, now)
        self._votes.pop(stored.document.id, None)

    # looking

    def detail(self, key: int | str, query: DocumentQuery) -> m.DocumentDetail:
        """Return one document with a slice of its chunks."""
        stored, first = self.find(key), query.chunk_offset
        limit = query.chunk_limit if query.chunks else 0
        fields = msgspec.structs.asdict(stored.document)
        chunks = list(stored.chunks[first : first + limit])
        is_wanted = query.text and stored.document.doc_type == "note"
        text = stored.text if is_wanted else msgspec.UNSET
        return m.DocumentDetail(**fields, chunks=chunks, chunk_offset=first, chunk_limit=limit, text=text)

    def check_citation(self, citation: m.Citation) -> m.CitationCheck:
        """Check a quote against the present text. A quote of a file is checked at its own position only."""
        if (document_id := self._by_uid.get(citation.document)) is None:
            return GONE
        stored = self.by_id[document_id]

        def chunk_at(place: int) -> m.Chunk | None:
            return next((chunk for chunk in stored.chunks if chunk.start <= place < chunk.end), None)

        if stored.document.doc_type == "note":
            quote = find_quote(citation, stored.text, moved=True)
        elif (chunk := chunk_at(citation.start)) is not None:
            quote = find_quote(citation, chunk.text, begins_at=chunk.start)
        else:
            quote = None
        return checked(citation, stored.document, quote, chunk_at(quote.start) if quote else None)

    def page(self, query: DocumentsQuery) -> m.DocumentList:
        """Return one page of the matching documents; ties are sorted by id in the same direction."""
        tags = set() if query.tag is None else set(query.tag.split(","))
        prefix = query.source_path_prefix or ""
        found = [
            document
            for document in (stored.document for stored in self.by_id.values())
            if query.source_path in (None, *document.source_paths)
            and any(path.startswith(prefix) for path in document.source_paths or [""])
            and tags.issubset(document.tags)
            and query.doc_type in (None, document.doc_type)
        ]

        def place(document: m.Document) -> tuple[Any, int]:
            if query.sort_by == "filename":
                return document.filename or document.title, document.id
            return getattr(document, query.sort_by), document.id

        found.sort(key=place, reverse=query.sort_order == "desc")
        page = found[query.offset : query.offset + query.limit]
        return m.DocumentList(documents=page, total=len(found), limit=query.limit, offset=query.offset)

    def tags(self, prefix: str, limit: int, offset: int) -> m.TagList:
        """Return the tags in use, in alphabetical order."""
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
        states = Counter(stored.document.status for stored in self.by_id.values())
        return m.DocumentCounts(
            total=len(self.by_id),
            searchable=states["searchable"],
            empty=states["empty"],
            by_type=dict(Counter(stored.document.doc_type for stored in self.by_id.values())),
        )

    def chunk(self, chunk_id: int) -> tuple[Stored, m.Chunk]:
        """Return a chunk and its document."""
        document_id, place = self.owners[chunk_id]
        stored = self.by_id[document_id]
        return stored, stored.chunks[place]

    def with_neighbors(self, result: m.SearchResult, count: int) -> m.SearchResult:
        """The result with up to `count` chunks before and after it, or as many as it already has."""
        chunks, place = self.by_id[result.document.id].chunks, result.chunk.index
        first = max(0, place - max(count, len(result.before)))
        last = place + max(count, len(result.after))
        return msgspec.structs.replace(
            result, before=list(chunks[first:place]), after=list(chunks[place + 1 : last + 1])
        )

    # used by changes

    def new_id(self) -> int:
        document_id, self._next_id = self._next_id, self._next_id + 1
        return document_id

    def new_chunk_ids(self, count: int) -> range:
        first, self._next_chunk = self._next_chunk, self._next_chunk + count
        return range(first, self._next_chunk)

    def change(self, old: Stored, new: Stored, now: int, **changes: Any) -> Stored:
        """Replace `old` by `new` with further `changes`, and increase the version."""
        document = msgspec.structs.replace(
            new.document, version=old.document.version + 1, updated_at=rfc3339(now), **changes
        )
        new = replace(new, document=document, updated=now)
        self.swap(old, new, now)
        return new

    def swap(self, old: Stored | None, new: Stored | None, now: int) -> None:
        """Remove `old` and add `new`; the index is updated only if the words differ."""
        same_words = old and new and old.chunks is new.chunks and old.document.title == new.document.title
        if old is not None:
            del self.by_id[old.document.id]
            del self._by_uid[old.document.uid]
            self._by_content[old.dedup_key].remove(old.document.id)
            for chunk in () if same_words else old.chunks:
                del self.owners[chunk.id]
                self.index.remove(chunk.id)
        if new is not None:
            self.by_id[new.document.id] = new
            self._by_uid[new.document.uid] = new.document.id
            self._by_content.setdefault(new.dedup_key, []).append(new.document.id)
            title = new.document.title  # twice, to give words of the title more weight
            for place, chunk in enumerate(() if same_words else new.chunks):
                self.owners[chunk.id] = (new.document.id, place)
                self.index.add(chunk.id, f"{title}\n{title}\n{headings_of(chunk) or ''}\n{chunk.text}")
        self.revision += 1
        self.last_updated = now
