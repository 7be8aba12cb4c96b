"""Passages, words, and the inverted index over them.

A text is cut into whole paragraphs up to a maximum length, with a new passage at each heading.
`text[start:end]` is exactly the passage, in code points; passages are in order, do not overlap, and leave out
only white space.

Words are cut and stemmed by SQLite's tokenizer, like the engine's. In scripts without spaces between words
(Chinese, Japanese, Korean) each character and each pair of neighbouring characters is a word, so that a word
is found inside a sentence.

Keyword scores are BM25, with a positive weight even in a base of one chunk. Stop words are left out while
other words remain; a repeated word weighs more, with saturation.
The total weight of a query is the BM25 score of a passage of average length with all its words; BM25 divided
by the total weight is comparable between queries and bases. The stand-in for embeddings is the cosine between
hashed bags of words: like an embedding it depends on the two texts alone. It is 1 for texts with the same
words, falls with fewer shared words, and knows no synonyms.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import pairwise
from threading import local
from typing import TypeVar
from zlib import crc32

from kb_readers.model import Page
from kb_readers.tables import header_at, tables_in

MAX_CHARS = 1_000
"""Maximum length of a passage in code points."""

_BLANK_LINES = re.compile(r"\n[ \t\r]*(?=\n)")
_HEADING = re.compile(r"^ {0,3}(?P<marks>#{1,6})[ \t]+(?P<title>[^\s#][^\n]*)", re.MULTILINE)
_SENTENCE_END = re.compile(r"[.!?…。！？]\s")
_HEADING_CHARS = 200
PAGE_BREAK = "\n\n"
"""Separator of two pages in the document's text."""
_CJK = re.compile(
    "[\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3040-\u30ff\u3100-\u312f\u31a0-\u31bf\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]+"
)
_STOP_WORDS = (
    "a an and are as at be but by can do does for from had has have how i if in into is it its no not of on "
    "or our so such that the their then there these they this to was we were what when where which who why "
    "will with you your"
)
K = TypeVar("K")
V = TypeVar("V")
DIMENSIONS = 4096
"""Number of hash buckets for words."""
_K1 = 1.2
_B = 0.75
_K3 = 8.0
_BACKGROUND = 100
"""Additional chunks without any of the words, counted in each base for the IDF."""
_STOP_WEIGHT = -math.log(0.7)
"""Maximum weight of a stop word: the weight of a word that occurs in seven of ten chunks."""
Scores = Mapping[int, float]
"""Scores by chunk id."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of the document's text. `start` is inclusive, `end` exclusive, in code points."""

    text: str
    start: int
    end: int
    page: int | None
    heading: str | None
    table_header: str


@dataclass(frozen=True, slots=True)
class _Span:
    start: int
    end: int
    title: str | None  # the title of the heading at its start


def text_of(pages: Iterable[Page]) -> str:
    """The document's text, to which offsets refer."""
    return PAGE_BREAK.join(page.text for page in pages)


def passages(pages: Iterable[Page], *, headings: bool) -> list[Passage]:
    """Return the passages of all pages. With `headings`, lines with `#` are headings, for later pages too."""
    found: list[Passage] = []
    offset = 0
    heading: str | None = None
    for page in pages:
        tables = list(tables_in(page.text)) if headings else []
        for span in _spans(page.text, headings):
            heading = span.title or heading
            text = page.text[span.start : span.end]
            header = header_at(page.text, span.start, tables)
            found.append(Passage(text, offset + span.start, offset + span.end, page.number, heading, header))
        offset += len(page.text) + len(PAGE_BREAK)
    return found


def _spans(text: str, headings: bool) -> Iterator[_Span]:
    """Join neighbouring pieces while they fit; a heading begins a new span."""
    whole: _Span | None = None
    for piece in _pieces(text, headings):
        if whole is None:
            whole = piece
        elif piece.title or piece.end - whole.start > MAX_CHARS:
            yield whole
            whole = piece
        else:
            whole = _Span(whole.start, piece.end, whole.title)
    if whole is not None:
        yield whole


def _pieces(text: str, headings: bool) -> Iterator[_Span]:
    """Yield paragraphs, or parts of long ones, without surrounding white space, cut before each heading."""
    titles: dict[int, str] = {}
    for found in _HEADING.finditer(text) if headings else ():
        titles[found.start()] = found["title"].rstrip("# \t\r")[:_HEADING_CHARS]
    breaks = (found.start() for found in _BLANK_LINES.finditer(text))
    edges = sorted({0, len(text), *titles, *breaks})
    for begin, end in pairwise(edges):
        title = titles.get(begin)
        for start, stop in _cut(text, begin, end):
            yield _Span(start, stop, title)
            title = None  # only the first part of a long paragraph has the title


def _cut(text: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a paragraph: cut after a sentence if possible, or between words, or at the limit."""
    while True:
        while begin < end and text[begin].isspace():
            begin += 1
        if begin >= end:
            return
        stop = end
        if end - begin > MAX_CHARS:
            half, limit = begin + MAX_CHARS // 2, begin + MAX_CHARS
            space = max(text.rfind(" ", half, limit), text.rfind("\n", half, limit))
            ends = [match.end() for match in _SENTENCE_END.finditer(text, half, limit)]
            stop = ends[-1] if ends else space if space > 0 else limit
        yield begin, begin + len(text[begin:stop].rstrip())
        begin = stop


class _Tokenizer(local):
    """SQLite's tokenizer, one for each thread. The standard library offers it only through a table."""

    def __init__(self) -> None:
        import sqlite3  # imported with the first text: most of the start-up time is imports

        self._db = sqlite3.connect(":memory:", isolation_level=None)
        self._db.executescript(
            "CREATE VIRTUAL TABLE text USING fts5 "
            "(x, content = '', tokenize = 'porter unicode61 remove_diacritics 2');"
            "CREATE VIRTUAL TABLE word USING fts5vocab (text, 'instance');"
        )

    def stems(self, text: str) -> list[str]:
        valid = text.encode("utf-8", "replace").decode().replace("\0", " ")
        self._db.execute("INSERT INTO text (x) VALUES (?)", (valid,))
        found = [stem for (stem,) in self._db.execute("SELECT term FROM word ORDER BY offset")]
        self._db.execute("INSERT INTO text (text) VALUES ('delete-all')")
        return found


@cache
def _tokenizer() -> _Tokenizer:
    return _Tokenizer()  # created with the first text, so that importing this module opens no database


def _stems(text: str) -> list[str]:
    """The stems of a text's words in order, with repetitions."""
    return _tokenizer().stems(_CJK.sub(" ", text))


def words_of_text(text: str) -> list[str]:
    """The stems of a text's words, with repetitions, and the words of its scripts without spaces."""
    return [*_stems(text), *(word for run in _CJK.findall(text) for word in (*run, *_pairs(run)))]


def words_of_query(query: str) -> list[str]:
    """The distinct stems to search for, and the character pairs of scripts without spaces."""
    return list(dict.fromkeys(_all_words(query)))


def _all_words(query: str) -> list[str]:
    pairs = [pair for run in _CJK.findall(query) for pair in (_pairs(run) or [run])]
    return [*_stems(query), *pairs]


def _counted(query: str) -> Counter[str]:
    """The words that count for keywords, and how often the query has each."""
    return Counter(content_words(_all_words(query)))


def _repeated(times: int) -> float:
    """The factor of the weight of a word that a query has so often."""
    return (_K3 + 1) * times / (times + _K3)


def content_words(stems: list[str]) -> list[str]:
    """The stems without stop words, or all stems if only stop words remain.

    Stop words weigh nothing beside other words.
    """
    return [word for word in stems if word not in _stop_stems()] or stems


@cache
def _stop_stems() -> frozenset[str]:
    return frozenset(_stems(_STOP_WORDS))


def _pairs(run: str) -> list[str]:
    return ["".join(pair) for pair in pairwise(run)]


@dataclass(frozen=True, slots=True)
class _Entry:
    length: int
    counts: Mapping[str, int]
    buckets: Mapping[int, float]


@dataclass(slots=True)
class Index:
    """An inverted index of chunks. The caller chooses the ids; `add` accepts each id once."""

    _entries: dict[int, _Entry] = field(default_factory=dict)
    _words: dict[str, dict[int, int]] = field(default_factory=dict)
    _buckets: dict[int, dict[int, float]] = field(default_factory=dict)
    _total_length: int = 0
    _cached: dict[str, Scores] = field(default_factory=dict)

    def add(self, chunk_id: int, text: str) -> None:
        stems = words_of_text(text)
        self._put(chunk_id, _Entry(len(stems), Counter(stems), _weights(tuple(stems))))

    def only(self, chunk_ids: Container[int]) -> Index:
        """Return an index of these chunks only."""
        some = Index()
        for chunk_id, entry in self._entries.items():
            if chunk_id in chunk_ids:
                some._put(chunk_id, entry)
        return some

    def _put(self, chunk_id: int, entry: _Entry) -> None:
        self._entries[chunk_id] = entry
        self._total_length += entry.length
        for word, count in entry.counts.items():
            self._words.setdefault(word, {})[chunk_id] = count
        for bucket, weight in entry.buckets.items():
            self._buckets.setdefault(bucket, {})[chunk_id] = weight
        self._cached.clear()

    def remove(self, chunk_id: int) -> None:
        entry = self._entries.pop(chunk_id)
        self._total_length -= entry.length
        for word in entry.counts:
            _drop(self._words, word, chunk_id)
        for bucket in entry.buckets:
            _drop(self._buckets, bucket, chunk_id)
        self._cached.clear()

    def copy(self) -> Index:
        return Index(
            dict(self._entries),
            {word: dict(chunks) for word, chunks in self._words.items()},
            {bucket: dict(chunks) for bucket, chunks in self._buckets.items()},
            self._total_length,
        )

    def keyword_scores(self, query: str) -> Scores:
        """BM25 of every chunk with at least one of the words, always positive; higher is better."""
        total: defaultdict[int, float] = defaultdict(float)
        for word, times in _counted(query).items():
            for chunk_id, score in self._scores(word).items():
                total[chunk_id] += score * _repeated(times)
        return total

    def total_weight(self, query: str) -> float:
        """The BM25 of a passage of average length with each word once; 0 for a query without words.

        A query of stop words alone has at least the weight of one unknown word, so that no chunk covers it.
        """
        words = _counted(query)
        least = math.log((len(self._entries) + _BACKGROUND + 1) / 0.5) if words else 0.0
        total = sum(self._weight(word) * _repeated(times) for word, times in words.items())
        return max(total, least) if _stop_stems().issuperset(words) else total

    def cosines(self, query: str) -> Scores:
        """The cosine, over 0 up to 1, of every chunk that shares a word with the query."""
        total: defaultdict[int, float] = defaultdict(float)
        for bucket, weight in _weights(tuple(words_of_query(query))).items():
            for chunk_id, there in self._buckets.get(bucket, {}).items():
                total[chunk_id] += weight * there
        return total

    def _scores(self, word: str) -> Scores:
        """BM25 of the chunks with one word."""
        if (known := self._cached.get(word)) is not None:
            return known
        if not (chunks := self._words.get(word)):
            return {}
        idf = self._weight(word)
        average = self._total_length / len(self._entries)
        scores: dict[int, float] = {}
        self._cached[word] = scores
        for chunk_id, count in chunks.items():
            length = self._entries[chunk_id].length / average
            scores[chunk_id] = idf * count * (_K1 + 1) / (count + _K1 * (1 - _B + _B * length))
        return scores

    def _weight(self, word: str) -> float:
        """The IDF of a word; always positive, so that a word in all chunks still counts a little."""
        held = len(self._words.get(word, ()))
        weight = math.log((len(self._entries) + _BACKGROUND + 1) / (held + 0.5))
        return min(weight, _STOP_WEIGHT) if word in _stop_stems() else weight


def _drop(postings: dict[K, dict[int, V]], key: K, chunk_id: int) -> None:
    chunks = postings[key]
    del chunks[chunk_id]
    if not chunks:
        del postings[key]


@lru_cache(maxsize=1024)
def _weights(stems: tuple[str, ...]) -> Mapping[int, float]:
    """The bag of words as a sparse vector of length 1."""
    counts: dict[int, int] = {}
    for word in content_words(list(stems)):
        bucket = crc32(word.encode("utf-8", "surrogatepass")) % DIMENSIONS
        counts[bucket] = counts.get(bucket, 0) + 1
    raw = {bucket: 1.0 + math.log(count) for bucket, count in counts.items()}
    length = math.sqrt(sum(weight * weight for weight in raw.values()))
    return {bucket: weight / length for bucket, weight in raw.items()}
