"""`knowledge-search`, `knowledge-remove`, `knowledge-show` and `knowledge-clear`."""

from __future__ import annotations

import math
from datetime import date
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_contracts.semantics.search import with_header
from kb_server.engine_client.port import read_document
from kb_server.tool import EXACT, INVALID, MISSING, WORDS, Annotations, Call, ToolError
from kb_server.toolsets import quoted
from kb_server.toolsets.knowledge.files import known
from kb_server.toolsets.knowledge.knowledge_tool import (
    DOCUMENT_NOT_FOUND,
    KnowledgeTool,
    Success,
    document_format,
    is_uuid,
    megabytes,
    name_of,
)

CONFIRM = "confirmation_required"
PHRASE = "DELETE ALL"
MAX_QUERY_CHARS = 500
NO_MATCH = "No documents found matching your query"

SortField = Literal["date_added", "filename", "size"]

_SORTED_BY: dict[SortField, m.SortBy] = {
    "date_added": "created_at",
    "filename": "filename",
    "size": "size_bytes",
}


class DateRange(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Both ends are included; each is a whole day in UTC."""

    start: Annotated[date, Meta(description="the first day, as 2025-01-01")] | None = None
    end: Annotated[date, Meta(description="the last day, all of it")] | None = None


class KnowledgeFilters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Conditions on the documents."""

    format: (
        Annotated[
            str, Meta(min_length=1, max_length=20, description="file format, such as pdf", examples=["pdf"])
        ]
        | None
    ) = None
    date_range: Annotated[DateRange, Meta(description="when the document was added, in UTC")] | None = None
    tags: (
        Annotated[
            list[Annotated[str, Meta(min_length=1, max_length=200)]],
            Meta(max_length=m.MAX_TAGS, description="only documents with all of these tags"),
        ]
        | None
    ) = None


class KnowledgeSearchArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    query: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=MAX_QUERY_CHARS,
            description="a question or words, in natural language",
            extra=WORDS,
        ),
    ]
    top_k: Annotated[int, Meta(ge=1, le=50, description="maximum number of results")] = 10
    min_relevance: Annotated[float, Meta(ge=0, le=1, description="minimum score of results")] = 0.0
    filters: Annotated[KnowledgeFilters, Meta(description="conditions on the documents")] | None = None


class ResultMetadata(msgspec.Struct, kw_only=True):
    """The position of a passage: `page_num` from 1, null if the format has no pages."""

    format: str
    page_num: int | None
    date_added: str


class KnowledgeHit(msgspec.Struct, kw_only=True):
    """A matching passage. `chunk_index` is its place in the document, from 0."""

    document_id: str
    chunk_id: str
    chunk_index: int
    filename: str
    format: str
    processing_method: str
    chunk_text: str
    relevance_score: Annotated[float, Meta(ge=0, le=1)]
    metadata: ResultMetadata


class KnowledgeSearchResult(Success, kw_only=True):
    """Best first. `total_results` counts the results given here, `search_time_ms` is rounded up."""

    query: str
    results: list[KnowledgeHit]
    total_results: int
    message: str | UnsetType = UNSET
    search_time_ms: int


class KnowledgeSearchTool(KnowledgeTool[KnowledgeSearchArguments, KnowledgeSearchResult]):
    name = "knowledge-search"
    title = "Search the knowledge base"
    description = """\
Search the knowledge base using natural language query. Returns the best matching passages by words and by \
meaning, each with its document and a relevance_score from 0 to 1, comparable between queries.

Use it before answering from memory. For a complex question search 2-3 variant phrasings, merge the results \
by chunk_id and reorder them by your own judgement.

Examples: {"query": "How to configure authentication?", "top_k": 5}; {"query": "pension", "filters": \
{"format": "pdf", "date_range": {"start": "2025-01-01", "end": "2025-12-31"}}}"""
    annotations = Annotations(read_only=True, idempotent=True)
    max_result_chars = 400_000

    async def run(self, arguments: KnowledgeSearchArguments, call: Call) -> KnowledgeSearchResult:
        given = arguments.filters
        request = m.SearchRequest(
            query=arguments.query,
            top=arguments.top_k,
            tags=(given.tags or []) if given else [],
            min_score=arguments.min_relevance,
            filters=None if given is None else _filters(given),
        )
        found = await self.engine.call(ops.SEARCH, body=request)
        results = [_hit(result) for result in found.results if result.without_phrase is not True]
        empty = not found.results and (await self.engine.call(ops.GET_STATUS)).documents.total == 0
        if empty:
            raise ToolError(
                "empty_knowledge_base",
                "Knowledge base is empty. Add documents with knowledge-add first",
                document_count=0,
            )
        call.log["results"] = len(results)
        return KnowledgeSearchResult(
            query=arguments.query,
            results=results,
            total_results=len(results),
            message=UNSET if results else NO_MATCH,
            search_time_ms=math.ceil(found.took_ms),
        )


def _filters(filters: KnowledgeFilters) -> m.Filters:
    days = filters.date_range or DateRange()
    if days.start is not None and days.end is not None and days.end < days.start:
        raise ToolError(
            INVALID,
            f"The parameter `filters.date_range.end` must be a day from {days.start} on; got {days.end}.",
            parameter="filters.date_range.end",
        )
    names = None
    if filters.format is not None:  # the engine may know a format by either name
        name = filters.format.lower().removeprefix(".")
        names = list(dict.fromkeys((name, known(name))))
    return m.Filters(
        format=names,
        date_from=None if days.start is None else days.start.isoformat(),
        date_to=None if days.end is None else days.end.isoformat(),
    )


def _hit(result: m.SearchResult) -> KnowledgeHit:
    document = result.document
    form = document_format(document)
    return KnowledgeHit(
        document_id=document.uid,
        chunk_id=result.chunk.uid,
        chunk_index=result.chunk.index,
        filename=name_of(document),
        format=form,
        processing_method=document.extraction_method,
        chunk_text=with_header(result.chunk),
        relevance_score=result.score,
        metadata=ResultMetadata(format=form, page_num=result.chunk.page, date_added=document.created_at),
    )


class KnowledgeRemoveArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    document_id: Annotated[
        str, Meta(min_length=1, max_length=100, description="from knowledge-show, knowledge-search or a task")
    ]
    confirm: Annotated[
        bool, Meta(description="true: remove the document; false: only show it", extra=EXACT)
    ] = False


class KnowledgeRemoveResult(Success, kw_only=True):
    """The removed document."""

    document_id: str
    filename: str
    chunks_removed: int
    message: str = "Document removed successfully"


class KnowledgeRemoveTool(KnowledgeTool[KnowledgeRemoveArguments, KnowledgeRemoveResult]):
    name = "knowledge-remove"
    title = "Remove a document"
    description = """\
Remove a specific document from the knowledge base, with all its passages. No tool of this toolset can \
restore it, so it requires confirm=true; without it, the response shows the document. If the client supports \
it, the user is asked too.

Example: {"document_id": "3f0c5d7e-9a53-4f1c-8e2b-0b8f3f2f9b11", "confirm": true}"""
    annotations = Annotations(destructive=True, idempotent=True)
    right = "delete"
    asks = True

    async def run(self, arguments: KnowledgeRemoveArguments, call: Call) -> KnowledgeRemoveResult:
        document_id = arguments.document_id
        if not is_uuid(document_id):  # the engine also accepts its own number, which is not an id here
            message = DOCUMENT_NOT_FOUND.format(id=document_id)
            raise ToolError("document_not_found", message, document_id=document_id)
        document = await read_document(self.engine, document_id.lower())
        if not arguments.confirm:
            preview = {"id": document.uid, "filename": name_of(document), "chunks": document.chunk_count}
            raise ToolError(
                CONFIRM, "Set confirm=true to remove this document", quotes=True, document=preview
            )
        await self.confirmed(
            f"Remove {quoted(name_of(document))}, with {document.chunk_count} passages?", call
        )
        removed = await self.engine.call(ops.DELETE_DOCUMENT, path={"document_id": document.uid})
        return KnowledgeRemoveResult(
            document_id=document.uid, filename=name_of(document), chunks_removed=removed.chunks
        )


class KnowledgeShowArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=1_000, description="maximum number of documents")] = 100
    offset: Annotated[int, Meta(ge=0, le=m.MAX_INTEGER, description="number of documents to skip")] = 0
    sort_by: Annotated[SortField, Meta(description="sort key")] = "date_added"
    sort_order: Annotated[m.SortOrder, Meta(description="asc or desc")] = "desc"


class ListedDocument(msgspec.Struct, kw_only=True):
    """A document. `processing_status` is `empty` if no text was found in it."""

    id: str
    filename: str
    format: str
    size_bytes: int
    date_added: str
    chunk_count: int
    processing_status: Literal["completed", "empty"]
    processing_method: str


class KnowledgeShowResult(Success, kw_only=True):
    """One page; `total_count` counts the documents of all pages."""

    documents: list[ListedDocument]
    total_count: int
    limit: int
    offset: int
    message: str | UnsetType = UNSET


class KnowledgeShowTool(KnowledgeTool[KnowledgeShowArguments, KnowledgeShowResult]):
    name = "knowledge-show"
    title = "List the documents"
    description = """\
List all documents in the knowledge base with metadata: id, file name, format, size, time of addition and \
number of passages. The default order is newest first; sort_by and sort_order change it.

Example: {"limit": 50, "sort_by": "size", "sort_order": "desc"}"""
    annotations = Annotations(read_only=True, idempotent=True)
    max_result_chars = 400_000

    async def run(self, arguments: KnowledgeShowArguments, _call: Call) -> KnowledgeShowResult:
        query = ops.DocumentsQuery(
            limit=arguments.limit,
            offset=arguments.offset,
            sort_by=_SORTED_BY[arguments.sort_by],
            sort_order=arguments.sort_order,
        )
        found = await self.engine.call(ops.LIST_DOCUMENTS, query=query)
        return KnowledgeShowResult(
            documents=[
                ListedDocument(
                    id=document.uid,
                    filename=name_of(document),
                    format=document_format(document),
                    size_bytes=document.size_bytes,
                    date_added=document.created_at,
                    chunk_count=document.chunk_count,
                    processing_status="empty" if document.status == "empty" else "completed",
                    processing_method=document.extraction_method,
                )
                for document in found.documents
            ],
            total_count=found.total,
            limit=arguments.limit,
            offset=arguments.offset,
            message=UNSET if found.total else "Knowledge base is empty",
        )


class KnowledgeClearArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    confirm: Annotated[bool, Meta(description="must be true", extra=EXACT)]
    confirmation_phrase: Annotated[
        str, Meta(max_length=100, description=f"must be {PHRASE}, exactly", examples=[PHRASE])
    ]


class KnowledgeClearResult(Success, kw_only=True):
    """The removed data. `storage_freed_mb` is the size of the files and notes, in units of 1048576 bytes."""

    documents_removed: int
    embeddings_removed: int
    storage_freed_mb: float
    message: str = "Knowledge base cleared successfully"


class KnowledgeClearTool(KnowledgeTool[KnowledgeClearArguments, KnowledgeClearResult]):
    name = "knowledge-clear"
    title = "Clear the knowledge base"
    description = """\
Remove all documents from the knowledge base: of every collection, notes and memories among them. Unfinished \
tasks are cancelled; described collections remain, empty. This cannot be undone: ask the user first. If the \
client supports it, it asks too.

Example: {"confirm": true, "confirmation_phrase": "DELETE ALL"}"""
    annotations = Annotations(destructive=True, idempotent=True)
    document_mark = "none"
    right = "administer"
    asks = True

    async def run(self, arguments: KnowledgeClearArguments, call: Call) -> KnowledgeClearResult:
        if not arguments.confirm or arguments.confirmation_phrase != PHRASE:
            raise await self._unconfirmed()
        if self.can_ask(call):
            total = (await self.engine.call(ops.GET_STATUS)).documents.total
            await self.confirmed(f"Remove ALL {total} documents, for good?", call)
        removed = await self.engine.call(ops.CLEAR_DOCUMENTS, query=ops.ClearQuery(confirm=True))
        return KnowledgeClearResult(
            documents_removed=removed.documents,
            embeddings_removed=removed.chunks,  # a passage has one embedding
            storage_freed_mb=megabytes(removed.bytes),
        )

    async def refusal(self, error: ToolError, _call: Call) -> ToolError:
        """Return the error; a missing confirmation counts as one that is not given."""
        return await self._unconfirmed() if error.code == MISSING else error

    async def _unconfirmed(self) -> ToolError:
        status = await self.engine.call(ops.GET_STATUS)
        return ToolError(
            CONFIRM,
            f"This action will delete ALL documents. Set confirm=true and confirmation_phrase='{PHRASE}' to "
            "proceed",
            current_document_count=status.documents.total,
        )
