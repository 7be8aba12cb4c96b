"""`kb_search`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kb_contracts.api import models as m
from kb_contracts.api.operations import GET_STATUS, SEARCH
from kb_contracts.semantics.query import SYNTAX, parse_query
from kb_contracts.semantics.search import as_line, with_header, within_budget
from kb_server import collection_moves
from kb_server.collection_tags import SplitTags, split_tags, tags_for_search
from kb_server.engine_client.errors import EngineFault
from kb_server.tool import WORDS, Annotations, Call, ToolError
from kb_server.toolsets.kb.collections import unknown_collection
from kb_server.toolsets.kb.kb_tool import KbTool, MaxChars

DEFAULT_TOP = 10
DEFAULT_MAX_CHARS = 20_000
DEFAULT_PER_DOCUMENT = 3
MAX_METADATA_CHARS = 2_000
_REPAIRS = 10
_NARROWING = (
    "collection",
    "tags",
    "doc_type",
    "min_score",
    "format",
    "source_type",
    "date_from",
    "date_to",
    "source_path_prefix",
    "fts_only",
)
"""The parameters that restrict the results."""

Top = Annotated[int, Meta(ge=1, le=100, description="results (default 10)")]

DESCRIPTION = """\
Search the knowledge base by words and meaning, before you answer from memory.

The search neither rephrases nor reranks; you do. Query expansion, for complex questions in natural \
language: write 2-3 variant phrasings (the user's words, a document's, narrower, broader), search for \
each, merge, deduplicate by chunk_id; scores compare between calls. Reranking: ask for the top 10-20, read, \
reorder by own judgement.

`weak`: nothing matches well, rephrase. "a phrase" in a short query: only passages with it; -word: without. \
fts_only: exact words. To read on: kb_get. Keep `citation` with each claim: kb_get checks it.

Example: {"query": "pension revaluation"}"""


class KbSearchArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    query: Annotated[str, Meta(min_length=1, max_length=4_000, description="search text", extra=WORDS)]
    top: Top | None = None
    top_n: Annotated[int, Meta(ge=1, le=100, description="same as top")] | None = None
    collection: Annotated[str, Meta(description="only this one")] | None = None
    tags: Annotated[list[str], Meta(description="all of these")] | None = None
    doc_type: Annotated[m.DocType, Meta(description="only this type")] | None = None
    mode: Annotated[m.Mode, Meta(description="words, meaning or both (default)")] | None = None
    fts_only: Annotated[bool, Meta(description="same as mode fts")] | None = None
    strict: Annotated[bool, Meta(description="never without a phrase")] = False
    min_score: Annotated[float, Meta(ge=0, le=1, description="minimum score")] = 0.0
    format: Annotated[list[str], Meta(description="such as pdf")] | None = None
    source_type: (
        Annotated[
            list[str],
            Meta(description="in metadata.source_type"),
        ]
        | None
    ) = None
    date_from: Annotated[str, Meta(description="added since: date or time")] | None = None
    date_to: Annotated[str, Meta(description="added until; a date is a whole UTC day")] | None = None
    source_path_prefix: (
        Annotated[
            str,
            Meta(min_length=1, description="source_path begins with it"),
        ]
        | None
    ) = None
    neighbors: Annotated[int, Meta(ge=0, le=5, description="chunks around each")] = 0
    explain: Annotated[bool, Meta(description="score parts")] = False
    max_chars: MaxChars = DEFAULT_MAX_CHARS
    max_tokens: Annotated[int, Meta(ge=50, le=50_000, description="in estimated tokens")] | None = None
    detail: Annotated[m.Detail, Meta(description="locations: no texts")] = "full"
    per_document: Annotated[int, Meta(ge=1, le=100, description="most of one document")] = (
        DEFAULT_PER_DOCUMENT
    )


class Passage(msgspec.Struct, kw_only=True):
    """A chunk beside a result."""

    chunk_id: int
    index: int
    text: str


class SearchHit(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A matching passage. A member without a value is left out.

    Title, source_path, filename, metadata and dates of a document are given with the first of its passages;
    the title only if the text does not begin with it, `created_at` only if it differs from `updated_at`.
    `metadata_omitted`: too long here, kb_get has it. With `detail` `locations` `text` is empty, and any
    metadata is too long. `duplicates` are places of nearly the same text; neighbours that match too are in
    `before` and `after`. `without_phrase`: no passage holds the phrase in quotation marks, nor does this one.
    """

    text: str
    score: float
    chunk_id: int
    chunk_index: int
    document_id: int
    tags: list[str]
    doc_type: str
    version: int
    page: int | None = None
    heading: str | None = None
    collection: str | None = None
    format: str | None = None
    title: str | UnsetType = UNSET
    source_path: str | None = None
    filename: str | None = None
    metadata: dict[str, Any] = {}
    created_at: str | UnsetType = UNSET
    updated_at: str | UnsetType = UNSET
    truncated: bool = False
    metadata_omitted: bool = False
    before: list[Passage] | UnsetType = UNSET
    after: list[Passage] | UnsetType = UNSET
    explain: dict[str, float | None] | UnsetType = UNSET
    citation: str | UnsetType = UNSET
    duplicates: list[m.Duplicate] | UnsetType = UNSET
    without_phrase: bool = False


class KbSearchResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Best first.

    `total` counts all matching chunks, regardless of `top`; `omitted` is the number left out for max_chars or
    max_tokens. If fewer than `top` match, the nearest other chunks follow. `mode` is present if it is not
    hybrid.
    """

    results: list[SearchHit]
    total: int
    weak: bool
    omitted: int = 0
    mode: str = "hybrid"
    hint: str = ""


class KbSearchTool(KbTool[KbSearchArguments, KbSearchResult]):
    name = "kb_search"
    title = "Search"
    description = DESCRIPTION
    annotations = Annotations(read_only=True, idempotent=True)
    max_result_chars = 400_000

    async def run(self, arguments: KbSearchArguments, call: Call) -> KbSearchResult:
        response = await self.engine.call(SEARCH, body=search_request(arguments))
        places = [split_tags(result.tags) for result in response.results]
        conflicting = {
            result.document.id: result
            for result, place in zip(response.results, places, strict=True)
            if place.is_conflicting
        }
        if conflicting:
            # Documents in several collections come from engines that merge tags; a search finds and repairs
            # them.
            for result in list(conflicting.values())[:_REPAIRS]:
                document = result.document
                await collection_moves.repair(self.engine, document.id, result.tags, document.version)
        call.log["results"] = len(response.results)
        # The engine was given the same limit. An engine that ignores it must not flood a model's context.
        results, left_out = within_budget(response.results, arguments.max_chars)
        described: set[int] = set()
        hits = []
        for result, place in zip(results, places, strict=False):
            hit = _hit(result, with_header(result.chunk), place, arguments, described)
            if result.citation is not UNSET:
                hit.citation = as_line(result.citation)
            hits.append(hit)
        omitted = response.omitted + left_out
        return KbSearchResult(
            results=hits,
            total=response.total,
            omitted=omitted,
            weak=response.weak,
            mode=response.mode,
            hint=_hint(hits, omitted, response, arguments, await self._on_nothing(response, arguments)),
        )

    async def _on_nothing(self, response: m.SearchResponse, arguments: KbSearchArguments) -> list[str]:
        """Return hints for an empty result: about the collection, and about pending jobs."""
        if response.results:
            return []
        hints = []
        if arguments.collection is not None:
            hints.append(await unknown_collection(self.engine, arguments.collection))
        try:
            queue = (await self.engine.call(GET_STATUS)).queue
        except EngineFault:
            return hints
        if pending := queue.queued + queue.running:
            jobs = "1 job is" if pending == 1 else f"{pending} jobs are"
            hints.append(
                f"{jobs} not done yet: their documents are found once they have completed (kb_jobs)."
            )
        return hints


def search_request(arguments: KbSearchArguments) -> m.SearchRequest:
    """Return the request to the engine.
    Raises ToolError: `contradiction` of `top` and `top_n`, `invalid_collection` or `invalid_tag`.
    """
    top, top_n = arguments.top, arguments.top_n
    if top is not None and top_n is not None and top != top_n:
        raise ToolError(
            "contradiction",
            f"top is {top} and top_n is {top_n}; they are the same parameter. Give one.",
            parameter="top",
        )
    filters = m.Filters(
        format=arguments.format,
        source_type=arguments.source_type,
        date_from=arguments.date_from,
        date_to=arguments.date_to,
        source_path_prefix=arguments.source_path_prefix,
    )
    return m.SearchRequest(
        query=arguments.query,
        top=top or top_n or DEFAULT_TOP,
        tags=tags_for_search(arguments.collection, arguments.tags or []),
        doc_type=arguments.doc_type,
        mode=arguments.mode,
        fts_only=arguments.fts_only or None,
        strict=arguments.strict,
        min_score=arguments.min_score,
        filters=None if filters == m.Filters() else filters,
        explain=arguments.explain,
        neighbors=arguments.neighbors,
        max_chars=arguments.max_chars,
        max_tokens=arguments.max_tokens,
        detail=arguments.detail,
        collapse=True,
        per_document=arguments.per_document,
        citations=True,
    )


def explained(explanation: m.Explanation) -> dict[str, float | None]:
    """Return the parts of a score by name; for a final score also their weights."""
    parts = {
        name: value
        for name in m.Explanation.__struct_fields__
        if name != "ranking" and (value := getattr(explanation, name)) is not UNSET
    }
    if (ranking := explanation.ranking) is not UNSET:
        for name, weight in msgspec.structs.asdict(ranking.weights).items():
            parts[name], parts[f"weight_{name}"] = getattr(ranking, name), weight
    return parts


def _hit(
    result: m.SearchResult, text: str, place: SplitTags, arguments: KbSearchArguments, described: set[int]
) -> SearchHit:
    """Return a hit; `described` are the documents of earlier hits, whose members are not repeated."""
    chunk, document = result.chunk, result.document
    hit = SearchHit(
        text=text,
        score=result.score,
        chunk_id=chunk.id,
        chunk_index=chunk.index,
        document_id=document.id,
        tags=place.tags,
        doc_type=document.doc_type,
        version=document.version,
        page=chunk.page,
        heading=chunk.heading,
        collection=place.collection,
        format=document.format,
        truncated=result.truncated,
    )
    if document.id not in described:
        described.add(document.id)
        _describe(hit, document, MAX_METADATA_CHARS if arguments.detail == "full" else 0)
    if (arguments.neighbors and arguments.detail == "full") or result.before or result.after:
        hit.before, hit.after = _passages(result.before), _passages(result.after)
    if result.duplicates:
        hit.duplicates = result.duplicates
    hit.without_phrase = result.without_phrase is True
    if result.explain is not None:
        hit.explain = explained(result.explain)
    return hit


def _describe(hit: SearchHit, document: m.DocumentSummary, most_metadata: int) -> None:
    if not hit.text.startswith(document.title):
        hit.title = document.title
    hit.source_path, hit.filename = document.source_path, document.filename
    hit.updated_at = document.updated_at
    if document.created_at != document.updated_at:
        hit.created_at = document.created_at
    if document.metadata:
        hit.metadata_omitted = len(msgspec.json.encode(document.metadata)) > most_metadata
        if not hit.metadata_omitted:
            hit.metadata = document.metadata


def _passages(chunks: list[m.Chunk]) -> list[Passage]:
    return [Passage(chunk_id=chunk.id, index=chunk.index, text=with_header(chunk)) for chunk in chunks]


def _hint(
    hits: list[SearchHit],
    omitted: int,
    response: m.SearchResponse,
    arguments: KbSearchArguments,
    on_nothing: list[str],
) -> str:
    hints = []
    if not response.results:
        given = [name for name in _NARROWING if getattr(arguments, name)]
        if SYNTAX.search(arguments.query) and parse_query(arguments.query).wording is not None:
            given.append("quotation marks or a minus in query")
        if given:
            hints.append(f"Nothing found with {', '.join(given)}: search without them, or rephrase.")
        else:
            hints.append("Nothing found: rephrase, or call kb_status for an overview of the base.")
        hints += filter(None, on_nothing)
    elif any(result.without_phrase is True for result in response.results):
        hints.append(
            "No passage holds the phrase in quotation marks: these are the best without it "
            "(strict leaves them out)."
        )
    elif response.weak:
        hints.append(
            "Nothing matches well: try other words, or 2-3 variant phrasings, before relying on this."
        )
    elif response.total < len(response.results):
        hints.append(f"Only {response.total} match; the other results are the nearest passages.")
    if response.total_exact is False:
        hints.append(f"{response.total} is the minimum number of matches.")
    if response.incomplete:
        hints.append(f"Incomplete: {response.incomplete}")
    if response.reranked is False:
        hints.append(f"Not reranked. {response.rerank_failure or ''}".rstrip())
    if omitted:
        tokens = "" if arguments.max_tokens is None else f" or max_tokens={arguments.max_tokens}"
        hints.append(
            f"{omitted} more results were left out by max_chars={arguments.max_chars}{tokens}: raise it or "
            "lower top."
        )
    if hits and arguments.detail == "locations":
        hints.append("kb_get with document_id and chunk_offset=chunk_index reads a text.")
    if any(hit.truncated for hit in hits):
        hints.append(
            "kb_get with document_id and chunk_offset=chunk_index returns the full text of a result."
        )
    return " ".join(hints)
