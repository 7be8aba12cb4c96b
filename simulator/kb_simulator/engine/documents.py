"""The documents of one base: taken in, deduplicated, changed, listed, removed; and its collections.

Every stored document is immutable and replaced whole, so that a copy of the base is a copy of dictionaries.
No I/O and no time of its own: times are passed in, in microseconds since 1970.

A name that nobody has described is a collection as long as a document carries its tag; its id comes from the
name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from kb_contracts.access.reach import Reach
from kb_contracts.api import models as m
from kb_contracts.api import ragler as r
from kb_contracts.api.formats import Format
from kb_contracts.api.operations import DocumentQuery, DocumentsQuery
from kb_contracts.semantics.access import check_changes, check_described, check_stays
from kb_contracts.semantics.citations import GONE, checked, find_quote
from kb_contracts.semantics.collections import check_description, no_collection_id
from kb_contracts.semantics.documents import (
    check_version,
    document_not_found,
    not_a_note,
    note_title,
    tag_not_found,
    tags_to_unite,
    text_digest,
    title_after_update,
)
from kb_contracts.semantics.feedback import Vote, Votes, feedback_of, tally, voted
from kb_contracts.semantics.sources import (
    Holder,
    Plan,
    plan,
    scope_after_tags,
    source_not_found,
    source_scope,
)
from kb_readers.model import Extraction
from kb_simulator.determinism import Seeded, rfc3339
from kb_simulator.engine.history import History
from kb_simulator.engine.index import Index, passages, text_of

NO_TEXT = "No text was found. A scan needs OCR, which the simulator does not do."

DedupKey = tuple[str, str, str]
"""Kind, SHA-256 and scope: what two submissions of the same thing have in common."""

_CHARACTERS_A_TOKEN = 4
_OF_CONTENT = (
    "title", "doc_type", "format", "filename", "size_bytes", "sha256", "status", "status_reason",
    "extraction_method", "pages", "chunk_count", "original",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Submission:
    """One source. `identity` tells submissions apart and seeds their ids; without a `title` one is found.

    `content` is the text, or why there is none: extraction happens before the state is asked, so that the
    state cannot fail on bytes. It holds those of a file that is to be kept (`original`).
    """

    identity: str
    kind: Literal["note", "file"]
    content: Extraction | m.JobError
    sha256: str
    size_bytes: int
    title: str | None
    tags: Sequence[str]
    metadata: Mapping[str, Any] | None
    source_path: str | None
    dedup_scope: str
    filename: str | None = None
    format: str | None = None
    doc_type: m.DocType = "note"
    original: bytes | None = None
    reach: Reach | None = None
    """How far its caller reaches: nothing beyond is the same, or replaced."""

    @property
    def job_title(self) -> str:
        if self.title is not None:
            return self.title
        content = self.content
        first = note_title(content.pages[0].text) if isinstance(content, Extraction) and content.pages else ""
        return self.filename or first

    @property
    def document_title(self) -> str:
        """The title given, else the file's own, else its name."""
        own = self.content.title if isinstance(self.content, Extraction) and self.kind == "file" else None
        return self.title or own or self.job_title


@dataclass(frozen=True, slots=True)
class Update:
    """What `PATCH /notes/{id}` asks for, to be done by a job. `identity` is as in `Submission`."""

    identity: str
    document_id: int
    patch: m.NotePatch
    reach: Reach | None = None


Line = int | tuple[str, str] | None
"""What jobs follow one another on: the note of an update, the scope and path of a source, or nothing."""


def line_of(wanted: Submission | Update) -> Line:
    """The line that a job stands in."""
    if isinstance(wanted, Update):
        return wanted.document_id
    if wanted.source_path is None:
        return None
    return source_scope(wanted.tags, wanted.dedup_scope), wanted.source_path


def note(identity: str, request: m.NoteRequest, reach: Reach | None = None) -> Submission:
    """A note as `POST /jobs` brings it."""
    sha256, size = text_digest(request.text)
    content = Extraction.of_note(request.text)
    return _submission(identity, request, content, sha256, size, kind="note", reach=reach)


def file(
    identity: str,
    fields: m.FileFields,
    filename: str,
    fmt: Format,
    content: Extraction | m.JobError,
    *,
    size: int,
    sha256: str,
    original: bytes | None = None,
    reach: Reach | None = None,
) -> Submission:
    """A file as `POST /jobs` brings it; `size` is in bytes."""
    of_file = {
        "kind": "file",
        "filename": filename,
        "format": fmt.name,
        "doc_type": fmt.doc_type,
        "original": original,
        "reach": reach,
    }
    return _submission(identity, fields, content, sha256, size, **of_file)


def _submission(
    identity: str,
    sent: m.NoteRequest | m.FileFields,
    content: Extraction | m.JobError,
    sha256: str,
    size: int,
    **members: Any,
) -> Submission:
    return Submission(
        identity=identity,
        content=content,
        sha256=sha256,
        size_bytes=size,
        title=sent.title,
        tags=tuple(dict.fromkeys(sent.tags)),
        metadata=sent.metadata,
        source_path=sent.source_path,
        dedup_scope=sent.dedup_scope,
        **members,
    )


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


@dataclass(slots=True)
class Documents:
    """The documents by id, and the index over their chunks. `revision` is raised by every change."""

    seeded: Seeded
    by_id: dict[int, Stored] = field(default_factory=dict)
    index: Index = field(default_factory=Index)
    owners: dict[int, tuple[int, int]] = field(default_factory=dict)  # chunk id: document id, place in it
    revision: int = 0
    last_updated: int | None = None
    history: History = field(default_factory=History)
    _votes: dict[int, dict[str, Vote]] = field(default_factory=dict)  # by document id and voice
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
            history=self.history.copy(),
            _votes={number: dict(votes) for number, votes in self._votes.items()},
            _by_uid=dict(self._by_uid),
            _by_content={key: list(ids) for key, ids in self._by_content.items()},
        )

    def number(self, key: int | str, now: int) -> int:
        """The id of a document that stands, or of which something is kept.

        Raises EngineError: `document_not_found`.
        """
        standing = self._by_uid.get(key) if isinstance(key, str) else key
        found = standing if standing in self.by_id else self.history.number(key, now)
        if found is None:
            raise document_not_found(key)
        return found

    def find(self, key: int | str) -> Stored:
        """By number or uid. Raises EngineError: `document_not_found`."""
        document_id = self._by_uid.get(key) if isinstance(key, str) else key
        if document_id is None or (stored := self.by_id.get(document_id)) is None:
            raise document_not_found(key)
        return stored

    def kept_bytes(self) -> int:
        """Of the files that are kept, of each content once."""
        past = (each.stored for kept in self.history.by_id.values() for each in kept)
        everything = [*self.by_id.values(), *past]
        sizes = {each.dedup_key[1]: len(each.original) for each in everything if each.original is not None}
        return sum(sizes.values())

    # taking in

    def take_in(self, submission: Submission, content: Extraction, uid: str, now: int) -> tuple[Stored, Plan]:
        """The document of a submission, and what became of its source."""
        path = submission.source_path
        planned = plan(path, self._twin(submission), self._holders(submission))
        for document_id in planned.removed:
            self._remove(self.by_id[document_id], now)
        for document_id in planned.detached:
            self._detach(self.by_id[document_id], path, now)
        if planned.target is None:
            return self._added(submission, content, uid, now), planned
        standing = self.by_id[planned.target]
        if path is None and not standing.unsourced:
            standing = self.by_id[planned.target] = replace(standing, unsourced=True)
        if not planned.swaps:
            return self._united(standing, submission, now), planned
        document = standing.document
        self.history.keep(standing, now)
        text, chunks = self._chunks(content, document.uid, document.version + 1)
        key = (submission.kind, submission.sha256, submission.dedup_scope)
        changed = self._changed(
            standing,
            replace(standing, text=text, chunks=chunks, dedup_key=key, original=submission.original),
            now,
            **_described(submission, content, chunks),
            tags=[*document.tags, *tags_to_unite(document.tags, submission.tags)],
            metadata=dict(submission.metadata or document.metadata),
        )
        return changed, planned

    def _twin(self, submission: Submission) -> int | None:
        """The oldest document of the same content in the same scope.

        Where the scope is a tag of the submission (a collection), one that is just being moved is no twin;
        with a source path it is in the collection of the source.
        """
        scope, tags = submission.dedup_scope, submission.tags
        for document_id in sorted(self._by_content.get((submission.kind, submission.sha256, scope), ())):
            carried = self.by_id[document_id].document.tags
            if not _is_within(submission.reach, carried):
                continue
            if scope in tags and scope not in carried:
                continue
            if submission.source_path is None or source_scope(carried, scope) == source_scope(tags, scope):
                return document_id
        return None

    def _holders(self, submission: Submission) -> list[Holder]:
        """The documents that the source of a submission points to."""
        if submission.source_path is None:
            return []
        scope = source_scope(submission.tags, submission.dedup_scope)
        return self._pointing(submission.source_path, scope, submission.reach)

    def _pointing(self, path: str, scope: str, reach: Reach | None) -> list[Holder]:
        """The documents within reach that a path in a scope points to."""
        return [
            stored.holder
            for _, stored in sorted(self.by_id.items())
            if path in stored.document.source_paths
            and _is_within(reach, stored.document.tags)
            and source_scope(stored.document.tags, stored.dedup_key[2]) == scope
        ]

    def _added(self, submission: Submission, content: Extraction, uid: str, now: int) -> Stored:
        path = submission.source_path
        document_id, self._next_id = self._next_id, self._next_id + 1
        text, chunks = self._chunks(content, uid, version=1)
        document = m.Document(
            id=document_id,
            uid=uid,
            source_path=path,
            source_paths=[] if path is None else [path],
            tags=list(submission.tags),
            metadata=dict(submission.metadata or {}),
            version=1,
            created_at=rfc3339(now),
            updated_at=rfc3339(now),
            **_described(submission, content, chunks),
        )
        key = (submission.kind, submission.sha256, submission.dedup_scope)
        stored = Stored(document, text, chunks, key, now, now, path is None, submission.original)
        self._swap(None, stored, now)
        return stored

    def _united(self, stored: Stored, submission: Submission, now: int) -> Stored:
        """The standing document with the further tags and path of its twin, and its file."""
        if submission.original is not None and stored.original is None:
            document = msgspec.structs.replace(stored.document, original=True)
            stored = replace(stored, document=document, original=submission.original)
            self.by_id[document.id] = stored
        tags = [*stored.document.tags, *tags_to_unite(stored.document.tags, submission.tags)]
        paths = list(stored.document.source_paths)
        if submission.source_path is not None and submission.source_path not in paths:
            paths.append(submission.source_path)
        if tags == stored.document.tags and paths == stored.document.source_paths:
            return stored
        return self._changed(
            stored, stored, now, tags=tags, source_path=paths[0] if paths else None, source_paths=paths
        )

    # changing

    def note(self, document_id: int, expected: int | None) -> Stored:
        """A note of the `expected` version, None: of any.

        Raises EngineError: `document_not_found`, `not_a_note` or `version_conflict`.
        """
        stored = self.find(document_id)
        if stored.document.doc_type != "note":
            raise not_a_note(document_id)
        check_version(stored.document.version, expected)
        return stored

    def replace_note(self, document_id: int, patch: m.NotePatch, now: int) -> Stored:
        """Raises as `note`."""
        stored, text = self.note(document_id, patch.expected_version), patch.text
        new_text = stored.text if text is None else text
        new_title = patch.title or title_after_update(stored.document.title, stored.text, new_text)
        content = Extraction.of_note(new_text)
        _, chunks = self._chunks(content, stored.document.uid, stored.document.version + 1)
        digest, size = text_digest(new_text)
        key = (stored.dedup_key[0], digest, stored.dedup_key[2])
        self.history.keep(stored, now)
        new = replace(stored, text=new_text, chunks=chunks, dedup_key=key)
        return self._changed(
            stored, new, now, title=new_title, size_bytes=size, sha256=digest, **_status(chunks)
        )

    def set_metadata(
        self, key: int | str, metadata: dict[str, Any], expected: int | None, now: int
    ) -> Stored:
        """Raises EngineError: `document_not_found` or `version_conflict`. The same: nothing changes."""
        stored = self.find(key)
        check_version(stored.document.version, expected)
        if metadata == stored.document.metadata:
            return stored
        return self._changed(stored, stored, now, metadata=metadata)

    def add_tags(
        self,
        key: int | str,
        tags: Sequence[str],
        expected: int | None,
        now: int,
        reach: Reach | None = None,
    ) -> Stored:
        """Nothing new: nothing changes.

        Raises EngineError: `document_not_found`, `version_conflict` or `forbidden`.
        """
        stored = self.find(key)
        check_version(stored.document.version, expected)
        check_changes(reach, tags)
        further = [tag for tag in dict.fromkeys(tags) if tag not in stored.document.tags]
        if not further:
            return stored
        kind, sha256, scope = stored.dedup_key
        new = replace(stored, dedup_key=(kind, sha256, scope_after_tags(scope, further)))
        return self._changed(stored, new, now, tags=[*stored.document.tags, *further])

    def remove_tag(
        self,
        key: int | str,
        tag: str,
        expected: int | None,
        now: int,
        reach: Reach | None = None,
        add: str | None = None,
    ) -> Stored:
        """Take a tag off, and then put another on.

        Raises EngineError: `document_not_found`, `tag_not_found`, `version_conflict` or `forbidden`.
        """
        stored = self.find(key)
        check_version(stored.document.version, expected)
        added = [] if add is None else [add]
        check_changes(reach, [tag, *added])
        check_stays(reach, [*(each for each in stored.document.tags if each != tag), *added])
        if tag not in stored.document.tags:
            raise tag_not_found(tag)
        kept = [each for each in stored.document.tags if each != tag]
        removed = self._changed(stored, stored, now, tags=kept)
        return self.add_tags(removed.document.id, added, None, now) if added else removed

    def give_feedback(self, key: int | str, voice: str, signal: m.Signal) -> m.Feedback:
        """Take down what a voice says of a document. Raises EngineError: `document_not_found`."""
        number = self.find(key).document.id
        votes = self._votes.setdefault(number, {})
        votes[voice] = voted(votes.get(voice), signal)
        return feedback_of(number, tally(votes.values()))

    def votes(self) -> dict[int, Votes]:
        """What was said of documents, by their ids."""
        return {number: tally(votes.values()) for number, votes in self._votes.items()}

    def remove_one(self, key: int | str, now: int, *, purge: bool = False) -> m.Removed:
        """Raises EngineError: `document_not_found`."""
        document = self.find(key).document
        removed = self.remove([key], now, purge=purge)
        removed.document_id, removed.document_uid = document.id, document.uid
        return removed

    def remove(self, keys: Iterable[int | str], now: int, *, purge: bool = False) -> m.Removed:
        """Raises EngineError: `document_not_found`."""
        removed = m.Removed(documents=0, chunks=0, bytes=0)
        for stored in [self.find(key) for key in keys]:
            self._remove(stored, now)
            if purge:
                self.history.drop(stored.document.id)
            removed.documents += 1
            removed.chunks += len(stored.chunks)
            removed.bytes += stored.document.size_bytes
        self.last_updated = now
        return removed

    def remove_source(self, key: int | str, path: str, expected: int | None, now: int) -> m.Removed:
        """Raises EngineError: `document_not_found`, `source_not_found` or `version_conflict`."""
        stored = self.find(key)
        check_version(stored.document.version, expected)
        if path not in stored.document.source_paths:
            raise source_not_found(path)
        if stored.holder.goes_with(path):
            return self.remove_one(key, now)
        self._detach(stored, path, now)
        document = stored.document
        return m.Removed(documents=0, chunks=0, bytes=0, document_id=document.id, document_uid=document.uid)

    def restore(
        self, key: int | str, version: int, expected: int | None, now: int, reach: Reach | None = None
    ) -> Stored:
        """Give a document the content of a version, or bring back a removed one.

        Raises EngineError: `document_not_found`, `version_not_found` or `version_conflict`.
        """
        document_id = self.number(key, now)
        past = self.history.find(document_id, version, now).stored
        standing = self.by_id.get(document_id)
        last = self.history.last(document_id, now) if standing is None else standing.document.version
        check_version(last, expected)
        chunks = self._again(past, last + 1)
        if standing is None:
            return self._brought_back(replace(past, chunks=chunks), last, now, reach)
        was = past.document
        if (standing.document.sha256, standing.document.title) == (was.sha256, was.title):
            return standing
        self.history.keep(standing, now)
        key_then = (past.dedup_key[0], past.dedup_key[1], standing.dedup_key[2])
        new = replace(standing, text=past.text, chunks=chunks, dedup_key=key_then, original=past.original)
        content = {name: getattr(was, name) for name in _OF_CONTENT}
        return self._changed(standing, new, now, **content)

    def _brought_back(self, past: Stored, last: int, now: int, reach: Reach | None) -> Stored:
        """A removed document put in again, without the sources that have another one by now."""
        scope = source_scope(past.document.tags, past.dedup_key[2])
        paths = [path for path in past.document.source_paths if not self._pointing(path, scope, reach)]
        document = msgspec.structs.replace(
            past.document,
            source_path=next(iter(paths), None),
            source_paths=paths,
            version=last + 1,
            updated_at=rfc3339(now),
        )
        back = replace(past, document=document, updated=now, unsourced=past.unsourced or not paths)
        self.history.bring_back(document.id, past.document.version)
        self._swap(None, back, now)
        return back

    def _again(self, past: Stored, version: int) -> tuple[m.Chunk, ...]:
        """The chunks of a version as new ones."""
        first, self._next_chunk = self._next_chunk, self._next_chunk + len(past.chunks)
        return tuple(
            msgspec.structs.replace(
                chunk,
                id=first + place,
                uid=self.seeded.uuid("chunk", past.document.uid, version, place),
            )
            for place, chunk in enumerate(past.chunks)
        )

    def _detach(self, stored: Stored, path: str | None, now: int) -> None:
        left = [each for each in stored.document.source_paths if each != path]
        self._changed(stored, stored, now, source_path=next(iter(left), None), source_paths=left)

    def _remove(self, stored: Stored, now: int) -> None:
        self.history.keep(stored, now, removed=True)
        self._swap(stored, None, now)
        self._votes.pop(stored.document.id, None)

    # looking

    def detail(self, key: int | str, query: DocumentQuery) -> m.DocumentDetail:
        """One document with a slice of its chunks. Raises EngineError: `document_not_found`."""
        stored, first = self.find(key), query.chunk_offset
        limit = query.chunk_limit if query.chunks else 0
        fields = msgspec.structs.asdict(stored.document)
        chunks = list(stored.chunks[first : first + limit])
        is_wanted = query.text and stored.document.doc_type == "note"
        text = stored.text if is_wanted else msgspec.UNSET
        return m.DocumentDetail(**fields, chunks=chunks, chunk_offset=first, chunk_limit=limit, text=text)

    def check_citation(self, citation: m.Citation) -> m.CitationCheck:
        """What has become of a quote; that of a file has not moved."""
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
        """One page of the documents that match, equals by id in the same direction."""
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
        states = Counter(stored.document.status for stored in self.by_id.values())
        return m.DocumentCounts(
            total=len(self.by_id),
            searchable=states["searchable"],
            empty=states["empty"],
            by_type=dict(Counter(stored.document.doc_type for stored in self.by_id.values())),
        )

    def chunk(self, chunk_id: int) -> tuple[Stored, m.Chunk]:
        """A chunk and its document."""
        document_id, place = self.owners[chunk_id]
        stored = self.by_id[document_id]
        return stored, stored.chunks[place]

    def with_neighbors(self, result: m.SearchResult, count: int) -> m.SearchResult:
        """The result with up to so many chunks before and after it, or as many as it has."""
        chunks, place = self.by_id[result.document.id].chunks, result.chunk.index
        first = max(0, place - max(count, len(result.before)))
        last = place + max(count, len(result.after))
        return msgspec.structs.replace(
            result, before=list(chunks[first:place]), after=list(chunks[place + 1 : last + 1])
        )

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
            for chunk in () if same_words else old.chunks:
                del self.owners[chunk.id]
                self.index.remove(chunk.id)
        if new is not None:
            self.by_id[new.document.id] = new
            self._by_uid[new.document.uid] = new.document.id
            self._by_content.setdefault(new.dedup_key, []).append(new.document.id)
            title = new.document.title  # twice: a word in a title says more
            for place, chunk in enumerate(() if same_words else new.chunks):
                self.owners[chunk.id] = (new.document.id, place)
                self.index.add(chunk.id, f"{title}\n{title}\n{chunk.heading or ''}\n{chunk.text}")
        self.revision += 1
        self.last_updated = now


def _is_within(reach: Reach | None, tags: Iterable[str]) -> bool:
    return reach is None or reach.admits(tags)


def _described(submission: Submission, content: Extraction, chunks: Sequence[m.Chunk]) -> dict[str, Any]:
    """What a document says of what it was made of."""
    return {
        "title": submission.document_title,
        "doc_type": submission.doc_type,
        "format": submission.format,
        "filename": submission.filename,
        "size_bytes": submission.size_bytes,
        "sha256": submission.sha256,
        "extraction_method": content.method,
        "pages": content.page_count,
        "original": msgspec.UNSET if submission.original is None else True,
        **_status(chunks),
    }


def _status(chunks: Sequence[m.Chunk]) -> dict[str, Any]:
    """What a document says of its chunks."""
    return {
        "chunk_count": len(chunks),
        "status": "searchable" if chunks else "empty",
        "status_reason": None if chunks else NO_TEXT,
    }


# --- collections ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Description:
    """What is said of a collection; times in microseconds since 1970."""

    id: str
    request: r.CollectionRequest
    created_by: str
    created: int
    updated: int


@dataclass(slots=True)
class Collections:
    """The described ones by name; the others are seen from the documents."""

    described: dict[str, Description] = field(default_factory=dict)

    def copy(self) -> Collections:
        return Collections(dict(self.described))

    def every(self, documents: Documents) -> r.CollectionList:
        """All, by name."""
        members = _members(documents)
        names = sorted(members.keys() | self.described.keys())
        each = [(self._known(name, members.get(name, [])), members.get(name, [])) for name in names]
        summaries = [r.CollectionSummary(**_summary(known, stored)) for known, stored in each]
        return r.CollectionList(collections=summaries, total=len(summaries))

    def detail(self, documents: Documents, id_: str) -> r.CollectionDetail:
        """One with its statistics. Raises EngineError: `collection_not_found`."""
        name = self.name_of(documents, id_)
        members = _members(documents).get(name, [])
        known = self._known(name, members)
        audience, scenarios = known.request.target_audience, known.request.usage_scenarios
        last = max((stored.updated for stored in members), default=known.updated)
        tokens = sum(estimated_tokens(chunk.text) for stored in members for chunk in stored.chunks)
        chunks = sum(len(stored.chunks) for stored in members)
        return r.CollectionDetail(
            **_summary(known, members),
            updated_at=rfc3339(max(last, known.updated)),
            target_audience=msgspec.UNSET if audience is None else audience,
            usage_scenarios=msgspec.UNSET if scenarios is None else scenarios,
            statistics=r.CollectionStatistics(
                total_tokens=tokens,
                avg_chunk_size=round(tokens / chunks, 3) if chunks else 0.0,
                last_published=rfc3339(last),
            ),
        )

    def put(
        self,
        documents: Documents,
        id_: str,
        wanted: r.CollectionRequest,
        now: int,
        reach: Reach | None = None,
    ) -> r.CollectionDetail:
        """Describe one. Raises EngineError: `collection_exists` or `forbidden`."""
        standing, members = self.described.get(wanted.name), _members(documents).get(wanted.name, [])
        check_described(reach, wanted.name, id_, None if standing is None else standing.id)
        check_description(
            id_,
            wanted.name,
            described_as=None if standing is None else standing.id,
            owner=next((name for name, other in self.described.items() if other.id == id_), None),
            in_use=bool(members),
        )
        if standing is None:
            created = min((stored.created for stored in members), default=now)
            creator = wanted.created_by or r.ENGINE_USER
            self.described[wanted.name] = Description(id_, wanted, creator, created, now)
        elif (later := _changed(standing, wanted, now)) is not None:
            self.described[wanted.name] = later
        return self.detail(documents, id_)

    def name_of(self, documents: Documents, id_: str) -> str:
        """Raises EngineError: `collection_not_found`."""
        for name in (*self.described, *_members(documents)):
            if self._id_of(name) == id_:
                return name
        raise no_collection_id(id_)

    def ids(self, documents: Documents, names: Iterable[str]) -> dict[str, str]:
        """The ids by name, of those that are collections."""
        there = self.described.keys() | _members(documents).keys()
        return {name: self._id_of(name) for name in names if name in there}

    def _id_of(self, name: str) -> str:
        known = self.described.get(name)
        return known.id if known else r.collection_id(name)

    def _known(self, name: str, members: list[Stored]) -> Description:
        """What is said, or what can be said of one that nobody has described."""
        return self.described.get(name) or Description(
            r.collection_id(name),
            r.CollectionRequest(name=name),
            r.ENGINE_USER,
            min(stored.created for stored in members),
            max(stored.updated for stored in members),
        )


def _changed(standing: Description, wanted: r.CollectionRequest, now: int) -> Description | None:
    """What is said from now on; None where it is what has been said."""
    creator = wanted.created_by or standing.created_by
    one, two = (msgspec.structs.replace(each, created_by=None) for each in (standing.request, wanted))
    if (one, standing.created_by) == (two, creator):
        return None
    return Description(standing.id, wanted, creator, standing.created, now)


def _members(documents: Documents) -> dict[str, list[Stored]]:
    """The documents of each collection in use, by its name."""
    members: dict[str, list[Stored]] = {}
    for stored in documents.by_id.values():
        for name in r.names_in(stored.document.tags):
            members.setdefault(name, []).append(stored)
    return members


def _summary(known: Description, members: list[Stored]) -> dict[str, Any]:
    return {
        "id": known.id,
        "name": known.request.name,
        "description": known.request.description,
        "chunk_count": sum(len(stored.chunks) for stored in members),
        "created_by": known.created_by,
        "created_at": rfc3339(known.created),
    }


def estimated_tokens(text: str) -> int:
    """A quarter of the characters, rounded up: nothing here has a tokenizer."""
    return -(-len(text) // _CHARACTERS_A_TOKEN)
