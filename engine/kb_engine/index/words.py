"""Words: which stand in a chunk, which a query asks for, and what they weigh; the same in every index.

The tokens are made by SQLite's own FTS5 tokenizer, through APSW and without a table. A term is a token, or
two neighbouring CJK tokens with a space between them: the phrases that a query can hold.

    weight(word) = log((size + BACKGROUND + 1) / (count + 1/2))

for a word in `count` of `size` chunks. That is BM25's logarithm, in a base that is larger by `BACKGROUND`
chunks without the word: of three notes nothing can be learned about which words are rare, and without these
chunks a word in all of them weighed nothing. In a large base they make no difference.

Which words say nothing of a subject cannot be learned from a small base either, and of interrogatives not
from a large one: *what* stands in every other question and in few passages. So an English function word
weighs no more than a word in seven of ten chunks, however rare it is.

The *reach* of a query is the BM25 of a passage of average length that holds each of its words once: the sum
of all weights, those of words in no chunk included. BM25 over reach says how much of the query a passage
covers, and means the same for a query of two words and of thirty, in a base of one chunk and of a million.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, islice, pairwise
from typing import NamedTuple, cast

import apsw

TOKENIZER = "porter unicode61 remove_diacritics 2"
MAX_PHRASES = 256
"""Of a query of up to 4,000 characters; the phrases beyond these do not count."""

_CJK = (
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3040-\u30ff\u3100-\u312f\u31a0-\u31bf\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
"""Han, kana, bopomofo and Hangul: written without spaces, or with particles grown on to the words."""
CJK_CHARACTER = re.compile(f"[{_CJK}]")
_CJK_RUN = re.compile(f"[{_CJK}]+")

TITLE_WEIGHT = 2
"""Of a word in the title; in heading and text it is one."""
LONGEST_TERM = 200
"""In characters; of a longer one its digest is kept, for a row of an index is short."""
BACKGROUND = 100
FUNCTION_WORD_SHARE = 0.7

_FUNCTION_WORDS = """
a about after all also am an and any are as at be because been before being between both but by could did do
does doing during each either ever every few for from further had has have having he her here him his how
however i if in into is it its itself me more most my nor not of off on once only or other our out over per
quite rather shall she should since so some such than that the their them then there these they this those
through thus to too under until up upon very was we were what when where whether which while who whom whose
why with within without would yet you your
"""
# Not in it: can, may, will, must, us, no and the like, which are names and nouns of many a subject, too.

ANALYSER = f"FTS5 {TOKENIZER}, CJK pairs, title {TITLE_WEIGHT}"
"""Stands in every file that holds such terms: those of another analyser must not be added to it."""


def index_text(text: str) -> str:
    """The text as FTS5 is to read it: each CJK character a word of its own.

    unicode61 takes a run of CJK characters for one word, so that a word inside a sentence is never
    found. The index keeps no text, so this changes nothing that anybody reads.
    """
    return CJK_CHARACTER.sub(r" \g<0> ", _valid(text)).replace("\0", " ")


def phrases(db: apsw.Connection, query: str) -> list[str]:
    """The FTS5 phrases of a query: its words, and each pair of neighbouring CJK characters, once each.

    Every phrase is quoted, so nothing a caller types is an operator. Radicals and the middle dot are CJK
    characters, but no letters to FTS5: a phrase of nothing else would be looked for in vain.
    """
    query = _valid(query)
    words = _words(db, _CJK_RUN.sub(" ", query))
    cjk: list[str] = []
    for run in _CJK_RUN.findall(query):
        pairs = [f'"{first} {second}"' for first, second in pairwise(run)]
        cjk += pairs or [f'"{run}"']
    words += islice((phrase for phrase in dict.fromkeys(cjk) if _words(db, phrase)), MAX_PHRASES)
    return words[:MAX_PHRASES]


def _words(db: apsw.Connection, text: str) -> list[str]:
    """The first spelling of each word; FTS5 stems it again, and stemming twice is not stemming once."""
    tokenize = db.fts5_tokenizer("porter", TOKENIZER.split()[1:])
    raw = text.encode()
    found = cast(
        "list[tuple[int, int, str]]",
        tokenize(raw, apsw.FTS5_TOKENIZE_QUERY, None, include_colocated=False),
    )
    spellings: dict[str, str] = {}
    for start, end, token in found:
        spellings.setdefault(token, f'"{raw[start:end].decode()}"')
    return list(spellings.values())


def _valid(text: str) -> str:
    """Without lone surrogates, which have no UTF-8."""
    return text.encode("utf-8", "replace").decode()


class AnalysedChunk(NamedTuple):
    """The words of a chunk with its title and heading."""

    terms: list[str]
    """Each as often as it counts, in any order."""
    length: int
    """In tokens, each once: pairs are not counted, and a title counts like any other text."""


class Analyser:
    """Used by one thread, with a connection of its own or one that it is given for its tokenizers alone."""

    def __init__(self, db: apsw.Connection | None = None) -> None:
        self._db = db or apsw.Connection(":memory:")
        self._tokenizer = self._db.fts5_tokenizer("porter", TOKENIZER.split()[1:])

    def terms_of(self, query: str) -> list[str]:
        """The terms of a query, one for each of its phrases; a phrase without a word has none."""
        found = (self._tokens(phrase, apsw.FTS5_TOKENIZE_QUERY) for phrase in phrases(self._db, query))
        return [_bounded(" ".join(tokens)) for tokens in found if tokens]

    def chunks(self, title: str, chunks: Iterable[tuple[str | None, str]]) -> Iterator[AnalysedChunk]:
        """The words of a document's chunks, each of which has a heading and a text."""
        titled = self._analysed(title)
        for heading, text in chunks:
            parts = [titled, self._analysed(heading or ""), self._analysed(text)]
            terms = list(chain(titled.terms * (TITLE_WEIGHT - 1), *(part.terms for part in parts)))
            yield AnalysedChunk(terms, sum(part.length for part in parts))

    def _analysed(self, text: str) -> AnalysedChunk:
        tokens = self._tokens(text if text.isascii() else index_text(text), apsw.FTS5_TOKENIZE_DOCUMENT)
        terms = tokens
        if not text.isascii():
            cjk = [CJK_CHARACTER.match(token) is not None for token in tokens]
            pairs = pairwise(zip(tokens, cjk, strict=True))
            terms = tokens + [f"{first} {second}" for (first, a), (second, b) in pairs if a and b]
        if max(map(len, terms), default=0) > LONGEST_TERM:
            terms = [_bounded(term) for term in terms]
        return AnalysedChunk(terms, len(tokens))

    def _tokens(self, text: str, reason: int) -> list[str]:
        raw = text.encode("utf-8", "replace")
        found = self._tokenizer(raw, reason, None, include_offsets=False, include_colocated=False)
        return cast("list[str]", found)


def _bounded(term: str) -> str:
    """A term of at most `LONGEST_TERM` characters: the digest of a longer one, which is nobody else's term,
    for no token begins with a space."""
    if len(term) <= LONGEST_TERM:
        return term
    return " " + hashlib.sha256(term.encode("utf-8", "surrogatepass")).hexdigest()


class Weights(NamedTuple):
    """What the terms of a query weigh, in their order; and its reach, 0 where it has no term."""

    of_terms: Sequence[float]
    reach: float


def weigh(terms: Sequence[str], counts: Sequence[int], size: int) -> Weights:
    """The terms of a query, of which each stands in so many of `size` chunks.

    A query of function words alone covers nothing whatever holds them: its reach is at least the weight of
    one word that is nowhere.
    """
    most = -math.log(FUNCTION_WORD_SHARE)
    of_terms = []
    for term, count in zip(terms, counts, strict=True):
        weight = math.log((size + BACKGROUND + 1) / (min(count, size) + 0.5))
        of_terms.append(min(weight, most) if term in _function_terms() else weight)
    reach = sum(of_terms)
    if terms and _function_terms().issuperset(terms):
        reach = max(reach, math.log((size + BACKGROUND + 1) / 0.5))
    return Weights(of_terms, reach)


@cache
def _function_terms() -> frozenset[str]:
    return frozenset(Analyser().terms_of(_FUNCTION_WORDS))
