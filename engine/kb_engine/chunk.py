"""Splits text into chunks for embedding: cut at natural boundaries, each with its place and heading."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from semantic_text_splitter import MarkdownSplitter, TextSplitter

from kb_contracts.semantics.headings import Heading
from kb_engine.store.port import PreparedChunk
from kb_readers.markdown import headings
from kb_readers.model import Extraction
from kb_readers.tables import Table, columns, header_at, table_at, tables_in

CHUNK_CHARS = 1000  # maximum size of a chunk in characters: about 230 tokens of English, under MiniLM's 256
MAX_TOKENS = 256
PAGE_BREAK = "\n\n"

_BREADCRUMB = " > "
# The splitter is quadratic for input without spaces, of emoji only, or with very many headings. Cut into
# segments first, the whole is linear: at worst 0.2 s a million characters.
_SEGMENT_CHARS = 16_000
_CHUNKS_A_SEGMENT = 8
_SHORT = 10  # passages of less than capacity / _SHORT characters are short

# Start and end on the page; start and text; start, text and tokens.
_Span: TypeAlias = tuple[int, int]
_Passage: TypeAlias = tuple[int, str]
_Counted: TypeAlias = tuple[int, str, int]


def chunks(
    extraction: Extraction,
    *,
    capacity: int = CHUNK_CHARS,
    count_tokens: Callable[[str], int] | None = None,
    max_tokens: int = MAX_TOKENS,
) -> Iterator[PreparedChunk]:
    """Yield the chunks of a document in order, of at most `capacity` characters plus a tenth.

    A chunk over `max_tokens`, as happens with Chinese, is cut further, so that the embedder reads all of it.
    Takes time linear in the length of the text.
    """
    splitter = (MarkdownSplitter if extraction.is_markdown else TextSplitter)(capacity)
    segment = max(_SEGMENT_CHARS, _CHUNKS_A_SEGMENT * capacity)
    trail = _Trail()
    page_start = 0
    for page in extraction.pages:
        found = list(headings(page.text)) if extraction.is_markdown else []
        tables = list(tables_in(page.text)) if extraction.is_markdown else []
        trail.turn_to(page.text, found)
        passages = _passages(page.text, splitter, segment)
        passages = _with_short_ones_joined(passages, page.text, found, tables, capacity)
        for start, end in passages:
            last = table_at(tables, end - 1)
            spare = count_tokens(columns(page.text, last)) if count_tokens and last else 0
            parts = _fitting(start, page.text[start:end], count_tokens, max_tokens, spare)
            for place, piece, tokens in parts:
                if _is_empty(page.text, place, place + len(piece), tables):
                    continue
                heading = trail.at(place, place + len(piece))
                if header := header_at(page.text, place, tables):
                    heading = f"{heading or ''}\n{header}"
                at = page_start + place
                yield PreparedChunk(piece, page.number, heading, at, at + len(piece), tokens)
        page_start += len(page.text) + len(PAGE_BREAK)


def _passages(text: str, splitter: MarkdownSplitter | TextSplitter, segment: int) -> Iterator[_Span]:
    """Yield the start and end of each passage of the splitter."""
    start = 0
    while start < len(text):
        end = start + segment
        passages = splitter.chunk_indices(text[start:end])
        if end < len(text) and passages and passages[-1][0] > 0:
            # The segment's end cut the last passage, which is no boundary: the next segment starts with it.
            end = start + passages.pop()[0]
        for place, passage in _stripped(passages):
            yield start + place, start + place + len(passage)
        start = end


def _with_short_ones_joined(
    passages: Iterator[_Span], text: str, found: list[Heading], tables: Sequence[Table], capacity: int
) -> Iterator[_Span]:
    """Yield the passages, joining headings and short lines, such as page headers, to the next passage.

    A heading alone would be found and carry no information. The rule of a table, which has no text, is joined
    to its neighbour.
    """
    starts = [heading.start for heading in found]

    def in_heading(place: int) -> bool:
        last = bisect_right(starts, place) - 1
        return last >= 0 and place < found[last].end

    short, most = capacity // _SHORT, capacity + capacity // _SHORT
    waiting: _Span | None = None
    for start, end in passages:
        if waiting is not None:
            headed = in_heading(waiting[1] - 1)
            alone = waiting[1] - waiting[0] < short and not in_heading(start)
            empty = _is_empty(text, *waiting, tables) or _is_empty(text, start, end, tables)
            if (headed or alone or empty) and end - waiting[0] <= most:
                waiting = waiting[0], end
                continue
            yield waiting
        waiting = start, end
    if waiting is not None:
        yield waiting


def _fitting(
    start: int, text: str, count_tokens: Callable[[str], int] | None, max_tokens: int, spare: int
) -> Iterator[_Counted]:
    """Yield the passage, or parts of it within `max_tokens`; a single character is never cut.

    Parts leave room for `spare` tokens of context, up to a quarter of `max_tokens`.
    """
    room = max_tokens - min(spare, max_tokens // 4)
    waiting = [(start, text)]
    while waiting:
        start, text = waiting.pop()
        tokens = count_tokens(text) if count_tokens else 0
        if tokens <= max_tokens or len(text) == 1:
            yield start, text, tokens
            continue
        # A tenth less than in proportion, since tokens are not evenly distributed.
        smaller = max(1, min(len(text) - 1, len(text) * room * 9 // (tokens * 10)))
        parts = list(_stripped(TextSplitter(smaller).chunk_indices(text)))
        waiting.extend((start + place, part) for place, part in reversed(parts))


def _stripped(passages: list[_Passage]) -> Iterator[_Passage]:
    """Strip the passages; the splitter leaves indents, and knows fewer blank characters."""
    for place, passage in passages:
        if body := passage.strip():
            yield place + passage.index(body[0]), body


def _is_empty(text: str, start: int, end: int, tables: Sequence[Table]) -> bool:
    """True if a passage consists of bars and dashes of a table, as its rule does."""
    return not text[start:end].strip("|:- \t\r\n") and table_at(tables, end - 1) is not None


class _Trail:
    """The headings above the latest place; places are queried in order."""

    def __init__(self) -> None:
        self._open: list[Heading] = []
        self._text = ""
        self._ahead: Iterator[Heading] = iter(())
        self._next: Heading | None = None

    def turn_to(self, text: str, found: list[Heading]) -> None:
        """Go on with the next page; the open headings of earlier pages stay open."""
        while self._next is not None:
            self._enter()
        self._text, self._ahead = text, iter(found)
        self._next = next(self._ahead, None)

    def at(self, start: int, end: int) -> str | None:
        """Return the breadcrumb of a passage: the headings above it, and those at its beginning."""
        while self._next is not None and self._next.start < start:
            self._enter()
        body = start
        while (
            self._next is not None
            and self._next.start < end
            and not self._text[body : self._next.start].strip()
        ):
            body = self._next.end
            self._enter()
        return _BREADCRUMB.join(heading.title for heading in self._open if heading.title) or None

    def _enter(self) -> None:
        """Open the next heading, which closes the headings of its level and below."""
        assert self._next is not None
        while self._open and self._open[-1].level >= self._next.level:
            self._open.pop()
        self._open.append(self._next)
        self._next = next(self._ahead, None)
