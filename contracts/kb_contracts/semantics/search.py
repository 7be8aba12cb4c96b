"""Rules of search requests and responses: modes, dates, bounds on the text, and citations.

`mode` and `fts_only` are two ways to select the mode. Dates are RFC 3339 and are converted to UTC.
`max_chars` and `max_tokens` bound the text of a response; `detail` may omit it.

A citation identifies a quote by the document's uid, by the characters from `start` to `end` of its text, and
by a hash of exactly these characters, so that neither the text nor the cited version has to be kept. The
quote is searched at its place first, then by its first characters (`begins`), nearest first, so that only
likely places are hashed. Only notes are edited in place: in a file, which is replaced as a whole, only the
cited place is compared.

An agent gets a citation as a line of text, and returns it unchanged:

    6f1c2f0e-8a4b-4c53-9c1a-5f2f6f0c9d11:3:12:840-1205:<hash>:Pensions%20are%20revalued
    document                             version page start-end                begins
"""

from __future__ import annotations

import hashlib
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time
from itertools import chain, islice
from typing import TypeVar
from urllib.parse import quote as percent_encoded
from urllib.parse import unquote

import msgspec
from msgspec import UNSET

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.api.models import Chunk, Filters, Mode, SearchRequest, SearchResult
from kb_contracts.api.ragler import VectorFilters
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
_BEGINS_CHARS = 24
_TRIES = 500  # maximum number of places with the same beginning that are hashed, nearest first
_LINE = re.compile(
    r"(?P<document>[^:]+):(?P<version>\d+):(?P<page>\d*):(?P<start>\d+)-(?P<end>\d+):(?P<hash>[^:]+):"
    r"(?P<begins>[^:]+)",
    re.ASCII,
)
GONE = m.CitationCheck(status="gone", document_id=None, version=None, citation=None, text=None)
"""The check of a citation whose document does not exist."""


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


def date_window(filters: Filters | VectorFilters) -> tuple[datetime | None, datetime | None]:
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
            "filters.date_to is before date_from; no document can match.",
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


# --- citations -------------------------------------------------------------------------------------


def with_citations(results: Iterable[m.SearchResult]) -> list[m.SearchResult]:
    """Return the results with citations of their present texts."""
    return [
        msgspec.structs.replace(
            result, citation=citation_of(result.document.uid, result.document.version, result.chunk)
        )
        for result in results
    ]


def citation_of(uid: str, version: int, chunk: m.Chunk) -> m.Citation:
    """Return the citation of a chunk's text, or of the beginning of a very long one."""
    text = chunk.text[: m.MAX_QUOTE_CHARS]
    return m.Citation(
        document=uid,
        version=version,
        page=chunk.page,
        heading=chunk.heading,
        start=chunk.start,
        end=chunk.start + len(text),
        begins=text[:_BEGINS_CHARS],
        hash=quote_hash(text),
    )


def quote_hash(text: str) -> str:
    """Return the first 128 bits of the SHA-256 of exactly this text in UTF-8, as 32 hexadecimal digits.

    128 bits are enough against a second text with the hash of a given quote. Collisions between two texts of
    the same author are possible with less effort, but deceive only that author.
    """
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Quote:
    """A quote that was found: its offset in the document's text, and its text."""

    start: int
    text: str


def find_quote(citation: m.Citation, text: str, *, begins_at: int = 0, moved: bool = False) -> Quote | None:
    """Return the quote in this text, which `begins_at` that offset of the document.

    The quote is at the cited place or, if it may have `moved`, at the nearest place to it. Return None if it
    is not found, or if `end` makes an empty or too long quote.
    """
    length = citation.end - citation.start
    if not 0 < length <= m.MAX_QUOTE_CHARS:
        return None
    cited = citation.start - begins_at
    others = islice(_occurrences(text, citation.begins, cited), _TRIES) if moved else iter(())
    for place in chain((cited,), others):
        if place >= 0 and quote_hash(words := text[place : place + length]) == citation.hash:
            return Quote(begins_at + place, words)
    return None


def _occurrences(text: str, words: str, start: int) -> Iterator[int]:
    """Yield the offsets of the words in the text, nearest to `start` first."""
    before = text.rfind(words, 0, start + len(words) - 1)
    after = text.find(words, start)
    while before >= 0 or after >= 0:
        if after < 0 or (before >= 0 and start - before <= after - start):
            yield before
            before = text.rfind(words, 0, before + len(words) - 1)
        else:
            yield after
            after = text.find(words, after + 1)


def checked(
    citation: m.Citation, document: m.Document, quote: Quote | None, chunk: m.Chunk | None
) -> m.CitationCheck:
    """Return the check of a citation of this document; `quote` was found in `chunk`, or begins there."""
    if quote is None or chunk is None:
        return m.CitationCheck(
            status="changed", document_id=document.id, version=document.version, citation=None, text=None
        )
    cited = msgspec.structs.replace(chunk, text=quote.text, start=quote.start)
    return m.CitationCheck(
        status="there" if quote.start == citation.start else "moved",
        document_id=document.id,
        version=document.version,
        citation=citation_of(document.uid, document.version, cited),
        text=quote.text,
    )


def as_line(citation: m.Citation) -> str:
    """Return the citation as a line for agents, without its heading, which is never compared."""
    page = "" if citation.page is None else citation.page
    begins = percent_encoded(citation.begins, safe="")
    place = f"{page}:{citation.start}-{citation.end}"
    return f"{citation.document}:{citation.version}:{place}:{citation.hash}:{begins}"


def from_line(line: str) -> m.Citation:
    """Return the citation of a line. Raises ValueError: the line is not a citation."""
    match = _LINE.fullmatch(line.strip()) if len(line) <= m.MAX_CITATION_CHARS else None
    if match is None:
        raise ValueError("it does not have the form of a citation")
    fields = match.groupdict()
    numbers = {name: int(fields[name]) for name in ("version", "page", "start", "end") if fields[name]}
    begins = unquote(fields["begins"], errors="strict")
    return msgspec.convert({**fields, "page": None, **numbers, "begins": begins}, m.Citation)
