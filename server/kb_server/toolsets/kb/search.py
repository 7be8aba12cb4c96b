"""`kb_search`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kb_contracts import models as m
from kb_server import collections
from kb_server.engine_client import Engine, engine_call
from kb_server.tool import Annotations, Call, ToolError, refuse_blank
from kb_server.toolsets.kb.parameters import Collection, MaxChars, TagText
from kb_server.toolsets.service_tool import ServiceTool

DEFAULT_TOP = 10
DEFAULT_MAX_CHARS = 20_000
MAX_METADATA_CHARS = 2_000
_REPAIRS = 10

Top = Annotated[int, Meta(ge=1, le=100, description="how many results at the most (default 10)")]

DESCRIPTION = """\
Search the knowledge base by words and by meaning. Answers with the passages that match best, each with its \
score, document, collection and tags.

Use it before answering from memory whenever the user's documents, notes or earlier work may hold the answer.

Query expansion - recommended for complex questions in natural language: the search does not rephrase, you \
do. Write 2-3 variant phrasings (the user's words; the terms a document would use; a narrower or broader \
question), call kb_search once for each, then merge the results and deduplicate them by chunk_id, keeping \
the best score. Scores can be compared between calls. Example: "How do pensions keep up with inflation?" -> \
"pension revaluation", "annual increase of pensions consumer price index", "inflation adjustment retirement \
benefits".

Reranking - also yours: ask for more than you need (top 10-20), read the passages, and reorder them by your \
own judgement of what answers the question. The score tells what is similar, not what is right.

Look elsewhere when `weak` is true: nothing matches well, so rephrase before you rely on it. For exact words \
(error messages, names, numbers) set fts_only. Restrict with collection and tags (all of them must be on the \
document). Read around a passage with neighbors, or the whole document with kb_get and its document_id.

Examples: {"query": "pension revaluation", "top": 5}; \
{"query": "email preferences", "collection": "memory"}; \
{"query": "connection reset by peer", "fts_only": true}"""


class KbSearchArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The arguments of `kb_search`."""

    query: Annotated[str, Meta(min_length=1, max_length=4_000, description="what to look for")]
    top: Top | None = None
    top_n: Annotated[int, Meta(ge=1, le=100, description="the same as top")] | None = None
    collection: Collection | None = None
    tags: (
        Annotated[
            list[TagText], Meta(max_length=63, description="tags that the document must have, all of them")
        ]
        | None
    ) = None
    doc_type: Annotated[m.DocType, Meta(description="only documents of this type")] | None = None
    mode: (
        Annotated[m.Mode, Meta(description="hybrid (default), fts for words alone, vector for meaning alone")]
        | None
    ) = None
    fts_only: Annotated[bool, Meta(description='exact words only, as mode "fts"')] | None = None
    min_score: Annotated[float, Meta(ge=0, le=1, description="leave out results that score less")] = 0.0
    format: (
        Annotated[
            list[str], Meta(max_length=20, description="only these file formats, such as pdf, docx, md")
        ]
        | None
    ) = None
    source_type: (
        Annotated[
            list[str],
            Meta(max_length=20, description="only documents with these metadata.source_type values"),
        ]
        | None
    ) = None
    date_from: (
        Annotated[str, Meta(description="only documents added then or later: RFC 3339 date or time")] | None
    ) = None
    date_to: (
        Annotated[str, Meta(description="only documents added then or earlier; a date is its whole UTC day")]
        | None
    ) = None
    source_path_prefix: (
        Annotated[
            str,
            Meta(min_length=1, max_length=1_000, description="only documents whose source_path begins so"),
        ]
        | None
    ) = None
    neighbors: Annotated[int, Meta(ge=0, le=5, description="chunks to add before and after each result")] = 0
    explain: Annotated[bool, Meta(description="add how each score came about")] = False
    max_chars: MaxChars = DEFAULT_MAX_CHARS


class Passage(msgspec.Struct, kw_only=True):
    """A chunk beside a result."""

    chunk_id: int
    index: int
    text: str


class SearchHit(msgspec.Struct, kw_only=True):
    """A passage that answers, with its document. `metadata_omitted`: too long here, kb_get has it."""

    text: str
    score: float
    page: int | None
    heading: str | None
    chunk_id: int
    chunk_index: int
    document_id: int
    document_uid: str
    title: str
    doc_type: str
    format: str | None
    source_path: str | None
    filename: str | None
    collection: str | None
    tags: list[str]
    metadata: dict[str, Any]
    version: int
    created_at: str
    updated_at: str
    truncated: bool = False
    metadata_omitted: bool = False
    before: list[Passage] | UnsetType = UNSET
    after: list[Passage] | UnsetType = UNSET
    explain: m.Explanation | UnsetType = UNSET


class KbSearchResult(msgspec.Struct, kw_only=True):
    """Best first. `total` counts all chunks that match; `omitted` those that max_chars left out here."""

    results: list[SearchHit]
    total: int
    omitted: int
    weak: bool
    mode: str
    hint: str


class KbSearchTool(ServiceTool[KbSearchArguments, KbSearchResult]):
    """Searches, with the collection as one more tag that must be there."""

    name = "kb_search"
    title = "Search the knowledge base"
    description = DESCRIPTION
    annotations = Annotations(read_only=True, idempotent=True)
    arguments = KbSearchArguments
    result = KbSearchResult
    max_result_chars = 400_000

    async def run(self, arguments: KbSearchArguments, call: Call) -> KbSearchResult:
        """`POST /search`."""
        request = search_request(arguments)
        with engine_call(call):
            response = await self.engine.search(request)
            await _repair(self.engine, response)
        call.log["results"] = len(response.results)
        return _shown(response, arguments)


def search_request(arguments: KbSearchArguments) -> m.SearchRequest:
    """What is asked of the engine.

    Raises:
        ToolError: `invalid_parameter`, `contradiction`, `invalid_collection` or `invalid_tag`.
    """
    refuse_blank("query", arguments.query)
    return m.SearchRequest(
        query=arguments.query,
        top=_top(arguments),
        tags=collections.searched(arguments.collection, arguments.tags or []),
        doc_type=arguments.doc_type,
        mode=_mode(arguments),
        fts_only=arguments.fts_only,
        min_score=arguments.min_score,
        filters=_filters(arguments),
        explain=arguments.explain,
        neighbors=arguments.neighbors,
        max_chars=arguments.max_chars,
    )


def _top(arguments: KbSearchArguments) -> int:
    given = {value for value in (arguments.top, arguments.top_n) if value is not None}
    if len(given) > 1:
        raise ToolError(
            "contradiction",
            f"top is {arguments.top} and top_n is {arguments.top_n}; they are the same parameter. Give one.",
            parameter="top",
        )
    return given.pop() if given else DEFAULT_TOP


def _mode(arguments: KbSearchArguments) -> m.Mode | None:
    mode, fts_only = arguments.mode, arguments.fts_only
    if mode is not None and fts_only is not None and fts_only != (mode == "fts"):
        raise ToolError(
            "contradiction",
            f'fts_only is {str(fts_only).lower()} and mode is "{mode}"; mode "fts" is what fts_only means. '
            "Give one of them.",
            parameter="mode",
        )
    return mode


def _filters(arguments: KbSearchArguments) -> m.Filters | None:
    filters = m.Filters(
        format=arguments.format,
        source_type=arguments.source_type,
        date_from=arguments.date_from,
        date_to=arguments.date_to,
        source_path_prefix=arguments.source_path_prefix,
    )
    return None if filters == m.Filters() else filters


@dataclass(frozen=True, slots=True)
class _Sighting:
    """A document as a search result shows it."""

    id: int
    tags: list[str]
    version: int


async def _repair(engine: Engine, response: m.SearchResponse) -> None:
    """Documents in several collections come from engines that merge tags; a search is where they are seen."""
    doubled = {
        result.document.id: _Sighting(result.document.id, result.tags, result.document.version)
        for result in response.results
        if collections.is_doubled(result.tags)
    }
    for sighting in list(doubled.values())[:_REPAIRS]:
        await collections.repair(engine, sighting)


def _shown(response: m.SearchResponse, arguments: KbSearchArguments) -> KbSearchResult:
    hits = _bounded([_hit(result, arguments) for result in response.results], arguments.max_chars)
    omitted = response.omitted + len(response.results) - len(hits)
    return KbSearchResult(
        results=hits,
        total=response.total,
        omitted=omitted,
        weak=response.weak,
        mode=response.mode,
        hint=_hint(hits, omitted, response, arguments),
    )


def _hit(result: m.SearchResult, arguments: KbSearchArguments) -> SearchHit:
    chunk, document = result.chunk, result.document
    placed = collections.split(result.tags)
    long = bool(document.metadata) and len(msgspec.json.encode(document.metadata)) > MAX_METADATA_CHARS
    return SearchHit(
        text=chunk.text,
        score=result.score,
        page=chunk.page,
        heading=chunk.heading,
        chunk_id=chunk.id,
        chunk_index=chunk.index,
        document_id=document.id,
        document_uid=document.uid,
        title=document.title,
        doc_type=document.doc_type,
        format=document.format,
        source_path=document.source_path,
        filename=document.filename,
        collection=placed.collection,
        tags=placed.tags,
        metadata={} if long else document.metadata,
        metadata_omitted=long,
        version=document.version,
        created_at=document.created_at,
        updated_at=document.updated_at,
        truncated=result.truncated,
        before=_passages(result.before) if arguments.neighbors else UNSET,
        after=_passages(result.after) if arguments.neighbors else UNSET,
        explain=UNSET if result.explain is None else result.explain,
    )


def _passages(chunks: list[m.Chunk]) -> list[Passage]:
    return [Passage(chunk_id=chunk.id, index=chunk.index, text=chunk.text) for chunk in chunks]


def _bounded(hits: list[SearchHit], max_chars: int) -> list[SearchHit]:
    """The hits whose texts fit into `max_chars` together; the first is cut rather than left out.

    The engine was asked for the same bound. One that does not keep it must not flood a model's context.
    """
    left = max_chars
    for kept, hit in enumerate(hits):
        left -= _chars(hit)
        if left < 0:
            return hits[:kept] or [_cut(hit, max_chars)]
    return hits


def _chars(hit: SearchHit) -> int:
    chars = len(hit.text)
    for beside in (hit.before, hit.after):
        if beside:
            chars += sum(len(passage.text) for passage in beside)
    return chars


def _cut(hit: SearchHit, max_chars: int) -> SearchHit:
    text = hit.text[:max_chars]
    empty: list[Passage] | UnsetType = UNSET if hit.before is UNSET else []
    return msgspec.structs.replace(hit, text=text, truncated=True, before=empty, after=empty)


def _hint(
    hits: list[SearchHit], omitted: int, response: m.SearchResponse, arguments: KbSearchArguments
) -> str:
    hints = []
    if not response.results:
        hints.append(_nothing(arguments))
    elif response.weak:
        hints.append(
            "Nothing matches well: try other words, or 2-3 variant phrasings, before relying on this."
        )
    if omitted:
        hints.append(
            f"{omitted} more results were left out by max_chars={arguments.max_chars}: raise it or lower top."
        )
    if any(hit.truncated for hit in hits):
        hints.append("A truncated text is whole in kb_get with its document_id and chunk_offset=chunk_index.")
    return " ".join(hints)


def _nothing(arguments: KbSearchArguments) -> str:
    if arguments.collection or arguments.tags:
        return "Nothing found under this collection and these tags: search without them, or rephrase."
    return "Nothing found: rephrase, or look at kb_status for what the base holds."
