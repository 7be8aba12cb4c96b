"""Rules of search requests and responses: modes, dates, bounds on the text, and RAGler's form of results.

`mode` and `fts_only` are two ways to select the mode. Dates are RFC 3339 and are converted to UTC.
`max_chars` and `max_tokens` bound the text of a response; `detail` may omit it.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from kb_contracts.api import ragler as r
from kb_contracts.api.errors import EngineError
from kb_contracts.api.models import Chunk, Filters, Mode, SearchRequest, SearchResult
from kb_contracts.semantics.citations import with_citations
from kb_contracts.semantics.query import FEW_WORDS, SYNTAX, ParsedQuery, Wording, parse_query

T = TypeVar("T")
CountTokens = Callable[[str], int]
"""Returns the number of tokens of a text by itself."""

PHRASES = 0.1
"""Part of its score's distance to 1 that a passage gains if it holds all phrases that are no conditions."""
PREFERRED_POOL = 100
"""Minimum number of candidates whose scores are raised for phrases."""
_FAR = 0.5
"""Share of the best score below which the last results are far."""

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})", re.ASCII)


def good_matches(results: Sequence[SearchResult]) -> int:
    """Return the number of results up to the last good one; a reranker orders them by another measure."""
    least = _FAR * max((result.score for result in results), default=0)
    return max((place for place, result in enumerate(results, 1) if result.score >= least), default=0)


def mode_of(request: SearchRequest) -> Mode:
    """Return the mode that `mode` and `fts_only` select together. Raises EngineError: `contradiction`."""
    mode, fts_only = request.mode, request.fts_only
    if mode is not None and fts_only is not None and fts_only != (mode == "fts"):
        raise EngineError(
            "contradiction",
            f"fts_only {str(fts_only).lower()} and mode {mode!r} exclude each other; send one of the two.",
            parameter="fts_only",
        )
    return "fts" if fts_only else mode or "hybrid"


def query_of(request: SearchRequest) -> ParsedQuery:
    """Return the parsed query; most queries have no syntax to parse. Raises EngineError: as `parse_query`."""
    if not SYNTAX.search(request.query):
        return ParsedQuery(request.query)
    return parse_query(request.query, math.inf if request.strict else FEW_WORDS)


def mode_and_query(request: SearchRequest) -> tuple[Mode, ParsedQuery]:
    """Return the mode and the parsed query. Raises EngineError: as `mode_of` and `query_of`."""
    return mode_of(request), query_of(request)


def preferring(results: Sequence[SearchResult], phrases: Wording) -> list[SearchResult]:
    """Return the results by their scores, which are raised for the phrases that they hold."""
    raised = []
    for result in results:
        share = phrases.share(result.document.title, headings_of(result.chunk), result.chunk.text)
        score = result.score + PHRASES * share * (1.0 - result.score)
        explain = result.explain and msgspec.structs.replace(result.explain, phrases=share)
        raised.append(msgspec.structs.replace(result, score=score, explain=explain))
    return sorted(raised, key=lambda result: -result.score)


def relaxed(query: ParsedQuery, request: SearchRequest) -> ParsedQuery | None:
    """Return the query whose passages follow if none holds the phrases; None if none may follow.

    With a minimum score, passages that hold the phrases may have been left out for their scores.
    """
    if request.strict or request.min_score or query.wording is None or not query.wording.phrases:
        return None
    return replace(query, wording=query.wording.exclusions())


def mark_without_phrase(results: Iterable[SearchResult], query: ParsedQuery) -> None:
    """Set `without_phrase` of the results that do not hold the phrases that are conditions."""
    if query.wording is not None:
        for result in results:
            if not query.wording.passes(result.document.title, headings_of(result.chunk), result.chunk.text):
                result.without_phrase = True


def date_window(filters: Filters | r.VectorFilters) -> tuple[datetime | None, datetime | None]:
    """Return the first and the last moment, both inclusive; a date as the end means the whole UTC day.

    Raises:
        EngineError: `invalid_parameter` with the member's name; `contradiction` if the end is before the
        start.
    """
    start = _moment(filters.date_from, "filters.date_from", time.min)
    end = _moment(filters.date_to, "filters.date_to", time.max)
    if start and end and end < start:
        raise EngineError(
            "contradiction",
            "filters.date_to is before filters.date_from; no document can match.",
            parameter="filters.date_to",
        )
    return start, end


def _moment(text: str | None, parameter: str, hour: time) -> datetime | None:
    if text is None:
        return None
    cause: Exception | None = None
    try:
        if _DATE.fullmatch(text):
            return datetime.combine(date.fromisoformat(text), hour, UTC)
        if _TIME.fullmatch(text):
            return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError) as error:  # 30 February, or a time before the year 1
        cause = error
    raise EngineError(
        "invalid_parameter",
        f"{parameter} is {text[:40]!r}; send a date like 2025-01-31 or a time like 2025-01-31T09:30:00Z.",
        parameter=parameter,
    ) from cause


def longest_prefix(items: Sequence[T], size: Callable[[T], int], budget: int) -> list[T]:
    """Return the longest prefix of the items whose total size is within the budget."""
    left = budget
    for count, item in enumerate(items):
        left -= size(item)
        if left < 0:
            return list(items[:count])
    return list(items)


def presented(
    results: Sequence[SearchResult], request: SearchRequest, count_tokens: CountTokens = len
) -> tuple[list[SearchResult], int]:
    """Return the results with the requested amount of text, and the number of texts that were omitted for it.

    `count_tokens` is called only if `max_tokens` bounds texts.
    """
    cite = with_citations if request.citations else list
    if request.detail == "locations":
        return without_text(cite(results)), 0
    kept, omitted = within_budget(results, request.max_chars, request.max_tokens, count_tokens)
    return cite(kept), omitted


def within_budget(
    results: Sequence[SearchResult],
    max_chars: int | None,
    max_tokens: int | None = None,
    count_tokens: CountTokens = len,
) -> tuple[list[SearchResult], int]:
    """Return the results whose text fits into both bounds, and the number of omitted ones.

    The best come first and take the room that they need. A result that does not fit completely loses its
    neighbours, which count as omitted, and its table header, then the end of its text, and is marked as
    truncated; once no room is left, the rest is omitted. `count_tokens` is called only if there is a bound on
    tokens.
    """
    bounds = [(len, max_chars), (count_tokens, max_tokens)]
    measures = [(measure, most) for measure, most in bounds if most is not None]
    left = [most for _, most in measures]
    kept: list[SearchResult] = []
    neighbors = 0
    for result in results:
        sizes = _sizes(result, measures)
        if any(size > room for size, room in zip(sizes, left, strict=True)):
            text = whole = result.chunk.text
            for (measure, _), room in zip(measures, left, strict=True):
                text = _beginning(text, measure, room)
            if not text:
                break
            neighbors += len(result.before) + len(result.after)
            chunk = msgspec.structs.replace(result.chunk, text=text, table_header=UNSET)
            truncated = result.truncated or text != whole
            result = msgspec.structs.replace(result, chunk=chunk, before=[], after=[], truncated=truncated)
            sizes = _sizes(result, measures)
        kept.append(result)
        left = [room - size for size, room in zip(sizes, left, strict=True)]
    return kept, len(results) - len(kept) + neighbors


def _sizes(result: SearchResult, measures: Iterable[tuple[CountTokens, int]]) -> list[int]:
    texts = [with_header(chunk) for chunk in (result.chunk, *result.before, *result.after)]
    return [sum(map(measure, texts)) for measure, _ in measures]


def _beginning(text: str, measure: CountTokens, room: int) -> str:
    """Return the longest prefix that fits, or a shorter one if the measure does not grow with the text."""
    if measure(text) <= room:
        return text
    return text[: max(0, bisect_right(range(len(text)), room, key=lambda end: measure(text[:end])) - 1)]


def with_header(chunk: Chunk) -> str:
    """Return the text for people and agents: below the header row, if it begins in a table."""
    return f"{chunk.table_header}\n{chunk.text}" if chunk.table_header else chunk.text


def headings_of(chunk: Chunk) -> str | None:
    """Return headings and header row, a line each, as the engine stores them."""
    return f"{chunk.heading or ''}\n{chunk.table_header}" if chunk.table_header else chunk.heading


def without_text(results: Iterable[SearchResult]) -> list[SearchResult]:
    """Return the results without any text, including the text of merged neighbours."""
    return [
        msgspec.structs.replace(
            result,
            chunk=_place(result.chunk),
            before=[_place(chunk) for chunk in result.before],
            after=[_place(chunk) for chunk in result.after],
        )
        for result in results
    ]


def _place(chunk: Chunk) -> Chunk:
    return msgspec.structs.replace(chunk, text="", table_header=UNSET)


def source_types(wanted: r.SourceType | None) -> tuple[str | None, ...]:
    """Return the values of the metadata's `source_type` that pass the filter; None: the document has no
    value.
    """
    if wanted is None:
        return ()
    return (wanted, None) if wanted == r.DEFAULT_SOURCE_TYPE else (wanted,)


def first_collections(results: Iterable[SearchResult]) -> list[str]:
    """Return the names of the results' collections, the first one of each result."""
    return [name for result in results for name in r.names_in(result.tags)[:1]]


def vector_result(result: SearchResult, ids: Mapping[str, str]) -> r.VectorResult:
    """Return a passage in the form of RAGler's clients; `ids` are the ids of collections by name."""
    document, chunk = result.document, result.chunk
    metadata = document.metadata
    source_type = metadata.get("source_type")
    return r.VectorResult(
        content=with_header(chunk),
        source_url=_text(metadata, "source_url", "url")
        or document.source_path
        or document.filename
        or f"urn:uuid:{document.uid}",
        score=result.score,
        metadata=r.VectorMetadata(
            collection_id=next((ids[name] for name in r.names_in(result.tags) if name in ids), None),
            source_type=source_type if isinstance(source_type, str) else r.DEFAULT_SOURCE_TYPE,
            context_breadcrumbs=_text(metadata, "context_breadcrumbs") or UNSET,
            heading=chunk.heading or UNSET,
            tags=[tag for tag in result.tags if not tag.startswith(r.PREFIX)],
            last_modified_by=_text(metadata, "last_modified_by") or r.ENGINE_USER,
            last_modified_at=document.updated_at,
        ),
    )


def _text(metadata: Mapping[str, Any], *names: str) -> str | None:
    """Return the first of these members that is a text and not blank."""
    for name in names:
        if isinstance(value := metadata.get(name), str) and value.strip():
            return value
    return None
