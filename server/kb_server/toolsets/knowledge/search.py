"""`knowledge-search`."""

from __future__ import annotations

import math
from datetime import date
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kb_contracts.api import models as m
from kb_contracts.api.operations import GET_STATUS, SEARCH
from kb_server.tool import INVALID, WORDS, Annotations, Call, ToolError
from kb_server.toolsets.knowledge.formats import known
from kb_server.toolsets.knowledge.tool import (
    KnowledgeTool,
    Success,
    document_format,
    name_of,
)

MAX_QUERY_CHARS = 500
NO_MATCH = "No documents found matching your query"


class DateRange(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Both ends belong to it; each is a whole day in UTC."""

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
            Meta(max_length=m.MAX_TAGS, description="only documents that carry all of these tags"),
        ]
        | None
    ) = None


class KnowledgeSearchArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    query: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=MAX_QUERY_CHARS,
            description="a question or words, as people say it",
            extra=WORDS,
        ),
    ]
    top_k: Annotated[int, Meta(ge=1, le=50, description="how many results at the most")] = 10
    min_relevance: Annotated[float, Meta(ge=0, le=1, description="leave out results that score less")] = 0.0
    filters: Annotated[KnowledgeFilters, Meta(description="only documents that fit")] | None = None


class ResultMetadata(msgspec.Struct, kw_only=True):
    """Where a passage stands: `page_num` from 1, null where the format has no pages."""

    format: str
    page_num: int | None
    date_added: str


class KnowledgeHit(msgspec.Struct, kw_only=True):
    """A passage that answers. `chunk_index` is its place in the document, from 0."""

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
    """Best first. `total_results` counts those that are here, `search_time_ms` is rounded up."""

    query: str
    results: list[KnowledgeHit]
    total_results: int
    message: str | UnsetType = UNSET
    search_time_ms: int


class KnowledgeSearchTool(KnowledgeTool[KnowledgeSearchArguments, KnowledgeSearchResult]):
    """Searches all collections."""

    name = "knowledge-search"
    title = "Search the knowledge base"
    description = """\
Search the knowledge base using natural language query. Answers with the passages that match best by words \
and by meaning, each with its document and a relevance_score from 0 to 1 that can be compared between queries.

Use it before answering what the documents may know. For a complex question search 2-3 variant phrasings, \
merge the results by chunk_id and reorder them by your own judgement.

Examples: {"query": "How to configure authentication?", "top_k": 5}; {"query": "pension", "filters": \
{"format": "pdf", "date_range": {"start": "2025-01-01", "end": "2025-12-31"}}}"""
    annotations = Annotations(read_only=True, idempotent=True)
    arguments = KnowledgeSearchArguments
    result = KnowledgeSearchResult
    max_result_chars = 400_000

    async def run(self, arguments: KnowledgeSearchArguments, call: Call) -> KnowledgeSearchResult:
        """`POST /search`, and `GET /status` where nothing was found."""
        request = _request(arguments)
        found = await self.engine.call(SEARCH, body=request)
        empty = not found.results and (await self.engine.call(GET_STATUS)).documents.total == 0
        if empty:
            raise ToolError(
                "empty_knowledge_base",
                "Knowledge base is empty. Add documents with knowledge-add first",
                document_count=0,
            )
        call.log["results"] = len(found.results)
        return KnowledgeSearchResult(
            query=arguments.query,
            results=[_hit(result) for result in found.results],
            total_results=len(found.results),
            message=UNSET if found.results else NO_MATCH,
            search_time_ms=math.ceil(found.took_ms),
        )


def _request(arguments: KnowledgeSearchArguments) -> m.SearchRequest:
    """What is asked of the engine.

    Raises:
        ToolError: `invalid_parameter`.
    """
    return m.SearchRequest(
        query=arguments.query,
        top=arguments.top_k,
        tags=(arguments.filters.tags or []) if arguments.filters else [],
        min_score=arguments.min_relevance,
        filters=None if arguments.filters is None else _filters(arguments.filters),
    )


def _filters(filters: KnowledgeFilters) -> m.Filters:
    days = filters.date_range or DateRange()
    if days.start is not None and days.end is not None and days.end < days.start:
        raise ToolError(
            INVALID,
            f"The parameter `filters.date_range.end` takes a day from {days.start} on; got {days.end}.",
            parameter="filters.date_range.end",
        )
    return m.Filters(
        format=None if filters.format is None else _names(filters.format),
        date_from=None if days.start is None else days.start.isoformat(),
        date_to=None if days.end is None else days.end.isoformat(),
    )


def _names(form: str) -> list[str]:
    """The names under which the engine may know a format."""
    name = form.lower().removeprefix(".")
    return list(dict.fromkeys((name, known(name))))


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
        chunk_text=result.chunk.text,
        relevance_score=result.score,
        metadata=ResultMetadata(format=form, page_num=result.chunk.page, date_added=document.created_at),
    )
