"""Documents as tools show them, and `kb_get`, which reads one with its text or lists those from a source."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kb_contracts.api import models as m
from kb_contracts.api.operations import GET_DOCUMENT, LIST_DOCUMENTS, DocumentQuery, DocumentsQuery
from kb_contracts.semantics.search import longest_prefix
from kb_server import collection_moves, collection_tags
from kb_server.tool import Annotations, Call, ToolError
from kb_server.toolsets.kb import DocumentId, KbTool, MaxChars

S = TypeVar("S", bound=msgspec.Struct)

DEFAULT_MAX_CHARS = 20_000
DEFAULT_CHUNKS = 200


class DocumentView(msgspec.Struct, kw_only=True):
    """A document. `version` is for `expected_version`; `collection` is null where it is in none."""

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


def document_members(document: m.Document) -> dict[str, Any]:
    """The members of a document as tools show them: with the collection taken out of the tags."""
    split = collection_tags.split_tags(document.tags)
    members = {**msgspec.structs.asdict(document), "collection": split.collection, "tags": split.tags}
    return {name: members[name] for name in DocumentView.__struct_fields__}


def fitting(entries: Iterable[S], max_bytes: int) -> list[S]:
    """The first entries whose JSON stays within `max_bytes` together, one at least where there is any."""
    kept: list[S] = []
    left = max_bytes
    for entry in entries:
        left -= len(msgspec.json.encode(entry))
        if left < 0 and kept:
            break
        kept.append(entry)
    return kept


class KbGetArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    document_id: DocumentId | None = None
    source_path: (
        Annotated[
            str,
            Meta(min_length=1, description="exactly as given"),
        ]
        | None
    ) = None
    chunk_offset: Annotated[int, Meta(ge=0, description="chunks to skip")] = 0
    chunk_limit: Annotated[int, Meta(ge=1, le=1_000, description="most chunks")] = DEFAULT_CHUNKS
    offset: Annotated[int, Meta(ge=0, description="documents to skip")] = 0
    max_chars: MaxChars = DEFAULT_MAX_CHARS


class KbGetResult(msgspec.Struct, kw_only=True):
    """By `document_id` the document's members and `chunks`; by `source_path` `documents` and `total`.

    `next_chunk_offset` and `next_offset` are there where there is more.
    """

    id: int | UnsetType = UNSET
    uid: str | UnsetType = UNSET
    title: str | UnsetType = UNSET
    doc_type: str | UnsetType = UNSET
    format: str | UnsetType | None = UNSET
    filename: str | UnsetType | None = UNSET
    source_path: str | UnsetType | None = UNSET
    source_paths: list[str] | UnsetType = UNSET
    size_bytes: int | UnsetType = UNSET
    sha256: str | UnsetType = UNSET
    collection: str | UnsetType | None = UNSET
    tags: list[str] | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    status: str | UnsetType = UNSET
    status_reason: str | UnsetType | None = UNSET
    extraction_method: str | UnsetType = UNSET
    pages: int | UnsetType | None = UNSET
    chunk_count: int | UnsetType = UNSET
    version: int | UnsetType = UNSET
    created_at: str | UnsetType = UNSET
    updated_at: str | UnsetType = UNSET
    chunks: list[ChunkView] | UnsetType = UNSET
    chunk_offset: int | UnsetType = UNSET
    next_chunk_offset: int | UnsetType = UNSET
    documents: list[DocumentEntry] | UnsetType = UNSET
    total: int | UnsetType = UNSET
    next_offset: int | UnsetType = UNSET
    hint: str


class KbGetTool(KbTool[KbGetArguments, KbGetResult]):
    name = "kb_get"
    title = "Get a document"
    description = """\
Read a document by document_id, with its text in chunks; or list by source_path the documents that came from \
there. What is long comes in parts: pass next_chunk_offset as chunk_offset, next_offset as offset.

Examples: {"document_id": 42}; {"source_path": "memory/feedback.md"}"""
    annotations = Annotations(read_only=True, idempotent=True)
    max_result_chars = 400_000

    async def run(self, arguments: KbGetArguments, _call: Call) -> KbGetResult:
        match arguments.document_id, arguments.source_path:
            case int() as document_id, None:
                return await self._by_id(document_id, arguments)
            case None, str() as source_path:
                return await self._by_source(source_path, arguments)
        raise ToolError(
            "contradiction" if arguments.source_path is not None else "missing_required_parameter",
            "kb_get takes either document_id or source_path, one of the two.",
        )

    async def _by_id(self, document_id: int, arguments: KbGetArguments) -> KbGetResult:
        query = DocumentQuery(chunk_offset=arguments.chunk_offset, chunk_limit=arguments.chunk_limit)
        document = await self.engine.call(GET_DOCUMENT, path={"document_id": document_id}, query=query)
        repaired = await collection_moves.repair(self.engine, document.id, document.tags, document.version)
        if repaired is not None:
            document = msgspec.structs.replace(document, tags=repaired.tags, version=repaired.version)
        views = [ChunkView(**msgspec.structs.asdict(chunk)) for chunk in document.chunks]
        # The first chunk is cut rather than left out.
        chunks = longest_prefix(views, lambda chunk: len(chunk.text), arguments.max_chars) or [
            msgspec.structs.replace(chunk, text=chunk.text[: arguments.max_chars], truncated=True)
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
        return KbGetResult(
            **document_members(document),
            chunks=chunks,
            chunk_offset=arguments.chunk_offset,
            next_chunk_offset=following if more else UNSET,
            hint=" ".join(hints),
        )

    async def _by_source(self, source_path: str, arguments: KbGetArguments) -> KbGetResult:
        query = DocumentsQuery(source_path=source_path, offset=arguments.offset)
        found = await self.engine.call(LIST_DOCUMENTS, query=query)
        entries = []
        for document in found.documents:
            repaired = await collection_moves.repair(
                self.engine, document.id, document.tags, document.version
            )
            members = document_members(repaired or document)
            entries.append(DocumentEntry(**{name: members[name] for name in DocumentEntry.__struct_fields__}))
        listed = fitting(entries, arguments.max_chars)
        following = arguments.offset + len(listed)
        more = found.total - following if listed else 0
        if not found.total:
            hint = "No document has this source_path; it must match exactly. kb_search finds by content."
        elif more > 0:
            hint = f"{more} more documents: call kb_get again with offset={following}."
        else:
            hint = "kb_get with a document's id as document_id reads its text."
        return KbGetResult(
            documents=listed, total=found.total, next_offset=following if more > 0 else UNSET, hint=hint
        )
