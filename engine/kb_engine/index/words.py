"""Words: which stand in a chunk, which a query asks for, and what they weigh; the same in every index.

The tokens are made by SQLite's own FTS5 tokenizer, through APSW and without a table. A term is a token, or
two neighbouring CJK tokens with a space between them: the phrases that a query can hold. In a document whose
language is known and is not English a token is stemmed by that language's rules (`languages.py`); in one of
a language without spaces each letter is a token, as a CJK character is.

A word of a query is looked for in each form that it has in the languages of the base. So it is found
wherever it stands, inflected or not, and the forms together weigh as one word in as many chunks as hold any.

    weight(word) = log((size + BACKGROUND + 1) / (count + 1/2))

for a word in `count` of `size` chunks. That is BM25's logarithm, in a base that is larger by `BACKGROUND`
chunks without the word: of three notes nothing can be learned about which words are rare, and without these
chunks a word in all of them weighed nothing. In a large base they make no difference.

Which words say nothing of a subject cannot be learned from a small base either, and of interrogatives not
from a large one: *what* stands in every other question and in few passages. So an English function word
weighs no more than a word in seven of ten chunks, however rare it is.

Text is compared in its plain spelling: ligatures, full-width and other forms of a letter are the letter, ß
is ss, and what is not seen (a soft hyphen, a joiner) is left out.

An identifier (`KB_EMBEDDER`, `node.js`, `C++`, `/etc/passwd`, `192.168.0.1`) is its words and one term more,
the whole of it, so that a passage with exactly this one stands above those that hold its parts. It adds to a
score where it is found, and takes nothing away where it is nowhere: it is no part of the reach. An index that
was made before there were such terms lacks their weight alone, and others may be added to it.

The *reach* of a query is the BM25 of a passage of average length that holds each of its words once: the sum
of all weights, those of words in no chunk included. BM25 over reach says how much of the query a passage
covers, and means the same for a query of two words and of thirty, in a base of one chunk and of a million.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, islice, pairwise
from typing import NamedTuple, TypeAlias, cast
from unicodedata import normalize

import apsw

from kb_engine.index.languages import STEMMERS, UNSPACED, stemmer

TOKENIZER = "porter unicode61 remove_diacritics 2"
MAX_IDENTIFIERS = 64
MAX_PHRASES = 256
"""Of a query of up to 4,000 characters; the phrases beyond these do not count."""
MAX_REQUIRED = 16
"""Words that a chunk has to hold: more of them leave hardly fewer chunks."""

_CJK = (
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3040-\u30ff\u3100-\u312f\u31a0-\u31bf\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
"""Han, kana, bopomofo and Hangul: written without spaces, or with particles grown on to the words."""
CJK_CHARACTER = re.compile(f"[{_CJK}]")
_CJK_RUN = re.compile(f"[{_CJK}]+")
_UNSPACED = "".join(UNSPACED.values())
_UNSPACED_CHARACTER = re.compile(f"[{_CJK}{_UNSPACED}]")
_UNSPACED_RUN = re.compile(f"[{_CJK}{_UNSPACED}]+")
_WITH_MARKS = ("unicode61", ["remove_diacritics", "0", "categories", "L* N* Co Mn Mc"])
"""Of languages that are stemmed: their rules know accents, and words of Hindi are not cut at vowel signs."""

_TURKISH = "tr"

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

_BEFORE_IDENTIFIERS = f"FTS5 {TOKENIZER}, CJK pairs, title {TITLE_WEIGHT}"
ANALYSER = f"{_BEFORE_IDENTIFIERS}, identifiers, languages"
"""Stands in every file that holds such terms."""
EARLIER_ANALYSERS = frozenset({_BEFORE_IDENTIFIERS})
"""Whose terms a query of this one finds as well, with what they lack left out: such files answer until they
have been made anew. Those of any other analyser do not."""


_PART = r"[^\W_]+"
_JOINT = r"[._:/@+#-]{1,3}"
_IDENTIFIER = re.compile(
    rf"(?<![^\W_])(?:[._#@/~-]{{1,3}}{_PART}|{_PART}(?=[._:/@+#-]))(?:{_JOINT}{_PART})*(?:\+\+|#)?(?![^\W_])"
)
"""Parts and what joins them, without white space; also one part with a mark before or after it."""
_BEFORE, _BEHIND = "([{<\"'`*", ".:,;!?)]}>\"'`*"
_MARKS = re.compile("[._:/@+#~-]")
_PROSE = re.compile(r"[^\W\d_]+(?:[-/][^\W\d_]+)+|[^\W\d_](?:\.[^\W\d_])+")
"""A well-known word, and/or, e.g.: people write them in several ways."""
_IDENTIFIER_WEIGHT = 2.0
"""Beside a word in as many chunks: passages that repeat the parts stay below the one that has the whole."""
_UNSEEN = dict.fromkeys([0xAD, 0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF])
_PLAIN = {**_UNSEEN, ord("ß"): "ss", ord("ẞ"): "SS", **dict.fromkeys(range(0x2010, 0x2016), "-"), 0x2212: "-"}


def plain(text: str) -> str:
    """The text in its plain spelling, without lone surrogates, which have no UTF-8."""
    if text.isascii():
        return text
    return normalize("NFKC", text.encode("utf-8", "replace").decode()).translate(_PLAIN)


def identifiers(text: str) -> list[str]:
    """The identifiers in a text in its plain spelling, in lower case, as often as they stand there."""
    # Most words are letters and a full stop: to look at each by the expression would take four times as long.
    candidates = [
        bare
        for word in text.split()
        if not word.isalnum() and not (bare := word.rstrip(_BEHIND).lstrip(_BEFORE)).isalnum()
    ]
    found = _IDENTIFIER.findall(" ".join(candidates)) if candidates else []
    return [_bounded(one.lower()) for one in found if _MARKS.search(one) and not _PROSE.fullmatch(one)]


def is_identifier(term: str) -> bool:
    """Whether a term is one; no token holds what joins its parts."""
    return _MARKS.search(term) is not None


def index_text(text: str, alone: re.Pattern[str] = CJK_CHARACTER) -> str:
    """The text as FTS5 is to read it: each CJK character, or what else is to stand alone, a word of its own.

    unicode61 takes a run of CJK characters for one word, so that a word inside a sentence is never
    found. The index keeps no text, so this changes nothing that anybody reads.
    """
    return alone.sub(r" \g<0> ", plain(text)).replace("\0", " ")


def phrases(db: apsw.Connection, query: str) -> list[str]:
    """The FTS5 phrases of a query: its words, and each pair of neighbouring CJK characters, once each.

    Every phrase is quoted, so nothing a caller types is an operator. Radicals and the middle dot are CJK
    characters, but no letters to FTS5: a phrase of nothing else would be looked for in vain.
    """
    query = plain(query)
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


class AnalysedChunk(NamedTuple):
    """The words of a chunk with its title and heading."""

    terms: list[str]
    """Each as often as it counts, in any order."""
    length: int
    """In tokens, each once: pairs are not counted, and a title counts like any other text."""


Word: TypeAlias = tuple[str, ...]
"""A word of a query: the terms that it is in documents of different languages, that of English first."""


class Analyser:
    """Used by one thread, with a connection of its own or one that it is given for its tokenizers alone."""

    def __init__(self, db: apsw.Connection | None = None) -> None:
        self._db = db or apsw.Connection(":memory:")
        self._tokenizer = self._db.fts5_tokenizer("porter", TOKENIZER.split()[1:])
        self._with_marks = self._db.fts5_tokenizer(*_WITH_MARKS)

    def words_of(self, query: str, languages: Iterable[str] = ()) -> list[Word]:
        """The words of a query to documents in these languages, in English, and in no known language; the
        identifiers in it are the last."""
        whole = [(one,) for one in dict.fromkeys(identifiers(plain(query)))]
        return [*self._words_of(query, languages), *whole[:MAX_IDENTIFIERS]]

    def _words_of(self, query: str, languages: Iterable[str]) -> list[Word]:
        stemmed = [language for language in languages if language in STEMMERS]
        unspaced = any(language in UNSPACED for language in languages)
        if not stemmed and not unspaced:
            return [(term,) for term in self.terms_of(query)]
        query = plain(query).replace("\0", " ")
        runs = _UNSPACED_RUN if unspaced else _CJK_RUN
        spaced = self._tokens(runs.sub(" ", query), apsw.FTS5_TOKENIZE_QUERY, self._with_marks)
        words = [self._forms(token, stemmed) for token in dict.fromkeys(spaced)]
        for run in runs.findall(query):
            words += self._pairs(run)
        return list(dict.fromkeys(filter(None, words)))[:MAX_PHRASES]

    def required(self, texts: Iterable[str], languages: Sequence[str]) -> list[Word]:
        """The words of all these texts, each once, or the longest of many: they are the rarest, as a rule.

        A passage that holds the texts, spelled as they are, holds one form of each word. An identifier is not
        required as a whole: with other signs between its words it is the same phrase.
        """
        found = dict.fromkeys(chain.from_iterable(self._words_of(text, languages) for text in texts))
        return sorted(found, key=lambda word: -len(word[0]))[:MAX_REQUIRED]

    def _forms(self, token: str, languages: Sequence[str]) -> Word:
        plain = self._tokens(token, apsw.FTS5_TOKENIZE_QUERY)
        stems = [stemmer(language)([token])[0] for language in languages]
        if _TURKISH in languages:
            # In lower case a capital I is an i to the tokenizer, and an ı in Turkish: Işık, IŞIK, ışık.
            first = {"ı": "i", "i": "ı"}.get(token[0], token[0])
            stems += stemmer(_TURKISH)([first + token[1:], token.replace("ı", "i")])
        return tuple(dict.fromkeys(map(_bounded, [*plain, *stems])))

    def _pairs(self, run: str) -> list[Word]:
        """Its pairs of neighbouring letters. With the first one goes what the run is where its language was
        not known."""
        letters = self._tokens(_UNSPACED_CHARACTER.sub(r" \g<0> ", run), apsw.FTS5_TOKENIZE_QUERY)
        pairs = [" ".join(pair) for pair in pairwise(letters)] or letters
        whole = self._tokens(run, apsw.FTS5_TOKENIZE_QUERY)
        return [tuple(dict.fromkeys([pairs[0], *whole])), *((pair,) for pair in pairs[1:])] if pairs else []

    def terms_of(self, query: str) -> list[str]:
        """The terms of a query, one for each of its phrases; a phrase without a word has none."""
        found = (self._tokens(phrase, apsw.FTS5_TOKENIZE_QUERY) for phrase in phrases(self._db, query))
        return [_bounded(" ".join(tokens)) for tokens in found if tokens]

    def chunks(
        self, title: str, chunks: Iterable[tuple[str | None, str]], language: str | None = None
    ) -> Iterator[AnalysedChunk]:
        """The words of a document's chunks, each of which has a heading and a text."""
        titled = self._analysed(title, language)
        for heading, text in chunks:
            parts = [titled, self._analysed(heading or "", language), self._analysed(text, language)]
            terms = list(chain(titled.terms * (TITLE_WEIGHT - 1), *(part.terms for part in parts)))
            yield AnalysedChunk(terms, sum(part.length for part in parts))

    def _analysed(self, text: str, language: str | None) -> AnalysedChunk:
        text = plain(text)
        character = _UNSPACED_CHARACTER if language in UNSPACED else CJK_CHARACTER
        raw = text if text.isascii() else index_text(text, character)
        if language in STEMMERS:
            found = self._tokens(raw, apsw.FTS5_TOKENIZE_DOCUMENT, self._with_marks)
            tokens = stemmer(language)(found)
        else:
            tokens = self._tokens(raw, apsw.FTS5_TOKENIZE_DOCUMENT)
        terms = tokens
        if not text.isascii():
            alone = [character.match(token) is not None for token in tokens]
            pairs = pairwise(zip(tokens, alone, strict=True))
            terms = tokens + [f"{first} {second}" for (first, a), (second, b) in pairs if a and b]
        if max(map(len, terms), default=0) > LONGEST_TERM:
            terms = [_bounded(term) for term in terms]
        if whole := identifiers(text):
            terms = [*terms, *whole]
        return AnalysedChunk(terms, len(tokens))

    def _tokens(self, text: str, reason: int, tokenizer: apsw.FTS5Tokenizer | None = None) -> list[str]:
        raw = text.encode("utf-8", "replace")
        found = (tokenizer or self._tokenizer)(
            raw, reason, None, include_offsets=False, include_colocated=False
        )
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


def weigh_words(
    words: Sequence[Word], counts: Mapping[str, int], size: int
) -> tuple[dict[str, float], float]:
    """What each term of a query's words weighs, and the query's reach; terms without a count are nowhere.

    The forms of a word weigh what a word weighs in as many chunks as hold any of them. A term that is in two
    words weighs for both. Identifiers weigh as well, beyond the reach.
    """
    whole = [word for word in words if is_identifier(word[0])]
    words = [word for word in words if not is_identifier(word[0])]
    together = [sum(counts.get(term, 0) for term in word) for word in words]
    weights = weigh([word[0] for word in words], together, size)
    of_terms: dict[str, float] = {}
    for (one,) in whole:
        of_terms[one] = _IDENTIFIER_WEIGHT * weigh([one], [counts.get(one, 0)], size).reach
    for word, weight in zip(words, weights.of_terms, strict=True):
        for term in word:
            of_terms[term] = of_terms.get(term, 0.0) + weight
    return of_terms, weights.reach


@cache
def _function_terms() -> frozenset[str]:
    return frozenset(Analyser().terms_of(_FUNCTION_WORDS))
