"""Documents in the results of tools, and `kb_get`, which reads one document or lists those of a source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_contracts.semantics.search import as_line, from_line, longest_prefix, with_header
from kb_server import collection_moves, collection_tags
from kb_server.engine_client.port import read_document
from kb_server.tool import Annotations, Call, ToolError
from kb_server.toolsets import view
from kb_server.toolsets.kb.collections import unknown_collection
from kb_server.toolsets.kb.kb_tool import DocumentId, KbTool, MaxChars

S = TypeVar("S", bound=msgspec.Struct)

DEFAULT_MAX_CHARS = 20_000
DEFAULT_CHUNKS = 200


class DocumentView(msgspec.Struct, kw_only=True):
    """A document. `version` is for `expected_version`; `collection` is null if it has no collection."""

    id: int
    uid: str
    title: str
    doc_type: str
    format: str | None
    filename: str | None
    source_path: str | None
    source_paths: list[str]
    size_bytes: int
    sha256: str
    collection: str | None
    tags: list[str]
    metadata: dict[str, Any]
    status: str
    status_reason: str | None
    extraction_method: str
    pages: int | None
    chunk_count: int
    version: int
    created_at: str
    updated_at: str
    fidelity: m.Fidelity | UnsetType = UNSET


class DocumentEntry(msgspec.Struct, kw_only=True):
    """A document in a list."""

    id: int
    title: str
    doc_type: str
    source_path: str | None
    collection: str | None
    tags: list[str]
    status: str
    chunk_count: int
    version: int
    updated_at: str


class ChunkView(m.Chunk, kw_only=True):
    """A passage. `truncated`: cut by `max_chars`."""

    truncated: bool = False


def more_from(following: int, total: int) -> str:
    """Return the hint for a list that goes on at the offset `following`; empty at its end."""
    return f"{total - following} more: offset={following}." if total > following else ""


def document_members(document: m.Document) -> dict[str, Any]:
    """Return the members of a document for tools: with the collection separated from the tags."""
    split = collection_tags.split_tags(document.tags)
    members = {**msgspec.structs.asdict(document), "collection": split.collection, "tags": split.tags}
    return {name: members[name] for name in DocumentView.__struct_fields__}


def fitting(entries: Sequence[S], max_bytes: int) -> Sequence[S]:
    """Return the first entries whose JSON stays within `max_bytes` together; at least one, if any."""
    return longest_prefix(entries, lambda entry: len(msgspec.json.encode(entry)), max_bytes) or entries[:1]


class KbGetArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    document_id: DocumentId | None = None
    source_path: Annotated[str, Meta(min_length=1, description="exactly as given")] | None = None
    collection: Annotated[str, Meta(description="list its documents")] | None = None
    citation: (
        Annotated[str, Meta(max_length=m.MAX_CITATION_CHARS, description="of kb_search, unchanged")] | None
    ) = None
    chunk_offset: Annotated[int, Meta(ge=0, description="chunks to skip")] = 0
    chunk_limit: Annotated[int, Meta(ge=1, le=1_000, description="most chunks")] = DEFAULT_CHUNKS
    offset: Annotated[int, Meta(ge=0, description="documents to skip")] = 0
    max_chars: MaxChars = DEFAULT_MAX_CHARS


_OptionalDocument: Any = msgspec.defstruct(
    "_OptionalDocument",
    [(name, kind | UnsetType, UNSET) for name, kind in get_type_hints(DocumentView).items()],
    kw_only=True,
)


class KbGetResult(_OptionalDocument, kw_only=True):  # type: ignore[call-arg, misc]
    """The result depends on the arguments.

    By `document_id` the document's members and `chunks`; by `source_path` or `collection` `documents` and
    `total`; by `citation` the state of the quote, its `text`, and the citation to use from now on.
    `next_chunk_offset` and `next_offset` are present if there is more.
    """

    chunks: list[ChunkView] | UnsetType = UNSET
    chunk_offset: int | UnsetType = UNSET
    next_chunk_offset: int | UnsetType = UNSET
    documents: list[DocumentEntry] | UnsetType = UNSET
    total: int | UnsetType = UNSET
    next_offset: int | UnsetType = UNSET
    citation_status: m.CitationStatus | UnsetType = UNSET
    citation: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    hint: str


_CITATION_HINTS: dict[m.CitationStatus, str] = {
    "there": "",
    "moved": "The quote has moved within the document: use this citation from now on.",
    "changed": "The quote is no longer in the document: read it with kb_get by its id, or search again.",
    "gone": "The document was removed: search again before relying on this.",
}


class KbGetTool(KbTool[KbGetArguments, KbGetResult]):
    name = "kb_get"
    title = "Get a document"
    description = """\
Read a document by document_id, its text in chunks; or list those of a collection, newest first, or of \
a source_path. Long results come in parts: pass next_chunk_offset as chunk_offset, next_offset as offset. \
With a citation: is the quote there, moved, changed or gone.

Examples: {"document_id": 42}; {"collection": "memory"}"""
    annotations = Annotations(read_only=True, idempotent=True)
    max_result_chars = 400_000

    async def run(self, arguments: KbGetArguments, _call: Call) -> KbGetResult:
        is_listing = arguments.source_path is not None or arguments.collection is not None
        match arguments.document_id, is_listing, arguments.citation:
            case int() as document_id, False, None:
                return await self._by_id(document_id, arguments)
            case None, True, None:
                return await self._listed(arguments)
            case None, False, str() as citation:
                return await self._by_citation(citation)
            case None, False, None:
                code = "missing_required_parameter"
            case _:
                code = "contradiction"
        raise ToolError(
            code,
            "kb_get takes exactly one of document_id, source_path and citation; or a collection, alone or "
            "with a source_path.",
        )

    async def _by_id(self, document_id: int, arguments: KbGetArguments) -> KbGetResult:
        query = ops.DocumentQuery(chunk_offset=arguments.chunk_offset, chunk_limit=arguments.chunk_limit)
        document = await read_document(self.engine, document_id, query)
        repaired = await collection_moves.repair(self.engine, document.id, document.tags, document.version)
        if repaired is not None:
            document = msgspec.structs.replace(document, tags=repaired.tags, version=repaired.version)
        views = [ChunkView(**msgspec.structs.asdict(chunk)) for chunk in document.chunks]
        # The first chunk is cut rather than left out.
        chunks = longest_prefix(views, lambda chunk: len(with_header(chunk)), arguments.max_chars) or [
            msgspec.structs.replace(
                chunk, text=chunk.text[: arguments.max_chars], table_header=UNSET, truncated=True
            )
            for chunk in views[:1]
        ]
        following = arguments.chunk_offset + len(chunks)
        more = max(0, document.chunk_count - following)
        hints = []
        if document.status == "empty":
            hints.append(f"The document has no text: {document.status_reason or 'none was found in it'}.")
        if any(chunk.truncated for chunk in chunks):
            hints.append("The chunk is longer than max_chars and was cut: raise max_chars to read all of it.")
        if more:
            hints.append(f"{more} more chunks: call kb_get again with chunk_offset={following}.")
        elif not chunks and document.chunk_count:
            hints.append(
                f"The document ends before chunk_offset={arguments.chunk_offset}; its number of chunks is "
                f"{document.chunk_count}. chunk_offset=0 reads it from its beginning."
            )
        return KbGetResult(
            **document_members(document),
            chunks=chunks,
            chunk_offset=arguments.chunk_offset,
            next_chunk_offset=following if more else UNSET,
            hint=" ".join(hints),
        )

    async def _by_citation(self, line: str) -> KbGetResult:
        try:
            citation = from_line(line)
        except ValueError as error:
            raise ToolError(
                "invalid_parameter",
                f"This is not a citation: {error}. Pass a citation exactly as kb_search returned it.",
                parameter="citation",
            ) from error
        check = await self.engine.call(ops.CHECK_CITATION, body=citation)
        return KbGetResult(
            id=UNSET if check.document_id is None else check.document_id,
            version=UNSET if check.version is None else check.version,
            citation_status=check.status,
            citation=UNSET if check.citation is None else as_line(check.citation),
            text=UNSET if check.text is None else check.text,
            hint=_CITATION_HINTS[check.status],
        )

    async def _listed(self, arguments: KbGetArguments) -> KbGetResult:
        source_path, collection = arguments.source_path, arguments.collection
        tag = None if collection is None else collection_tags.tag_of(collection)
        query = ops.DocumentsQuery(source_path=source_path, tag=tag, offset=arguments.offset)
        found = await self.engine.call(ops.LIST_DOCUMENTS, query=query)
        entries = []
        for document in found.documents:
            repaired = await collection_moves.repair(
                self.engine, document.id, document.tags, document.version
            )
            entries.append(view(DocumentEntry, DocumentView(**document_members(repaired or document))))
        listed = fitting(entries, arguments.max_chars)
        following = arguments.offset + len(listed)
        more = found.total - following if listed else 0
        if not found.total:
            hint = "" if collection is None else await unknown_collection(self.engine, collection)
            if source_path is not None:
                place = "" if collection is None else f" in {collection!r}"
                hint += f" No document{place} has this source_path; it must match exactly."
            hint = f"{hint} kb_search finds by content.".strip()
        elif not listed:
            hint = (
                f"The list ends before offset={arguments.offset}; its number of documents is {found.total}. "
                "offset=0 lists the first."
            )
        elif more > 0:
            hint = f"{more} more documents: call kb_get again with offset={following}."
        else:
            hint = "kb_get with a document's id as document_id reads its text."
        return KbGetResult(
            documents=listed, total=found.total, next_offset=following if more > 0 else UNSET, hint=hint
        )
